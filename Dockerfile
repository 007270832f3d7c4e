# An image with the CPU builds; for GPUs: --build-arg LOCK=requirements-gpu.lock --build-arg PYTHON=3.12
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... -t ouroboros .     docker run -v "$PWD:/project" ouroboros run
# Nobody has built it yet: no machine of the project runs docker. The steps are those of `make setup` and of README.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim
ARG LOCK=requirements.lock
# PyTorch's wheel index for CPUs (README, "Two commands"); for GPUs none
ARG PIP_EXTRA_INDEX_URL
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap g++ git make && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ouroboros
COPY ${LOCK} lock
RUN pip install --no-cache-dir --no-deps --requirement lock
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
RUN python -m ouroboros.pipeline.job.torchvision
WORKDIR /project
ENTRYPOINT ["ouro"]
