"""buildah makes of what the product hands to it what it makes of the Dockerfile as written: `make test-harbor`."""

import os

import pytest

from ouroboros.pipeline.store import dockerfiles
from ouroboros.pipeline.store.images import BUILD_SECONDS, Environment, Image
from ouroboros.stages import image_builder
from ouroboros.stages.image_builder import Builder, NotBuilt
from tests.golden.messages import refuses

pytestmark = pytest.mark.harbor
BASE = "ubuntu:24.04"
TOOL = "tool:1"
CONTEXT = {"f": "f\n", "a b": "ab\n", "sub/g": "g\n", "sub/skip.me": "s\n", ".dockerignore": "**/*.me\n"}
AS_WRITTEN = {  # each writes below /out
    "joined text": (
        "FROM ubuntu:24.04\nRUN mkdir /out && printf 'import os\\n\\\n"
        "print(1)\\n' > /out/x.py && python3 /out/x.py\n"),
    "joined variable": (
        "FROM ubuntu:24.04\nENV GREET=ab\\\ncd B=c\\\n  \\\n  D=e\nRUN mkdir /out && echo $GREET $B $D > /out/x\n"),
    "comments in between": (
        "FROM ubuntu:24.04\nRUN mkdir /out && \\\n  # c\n\n# d \\\n   echo 1 > /out/x \\  \n && echo 2 > /out/y\n"),
    "escape": (
        "# escape=`\nFROM ubuntu:24.04\nENV A=a`\nb P=c:\\\\d\nRUN mkdir /out && echo $A $P `\n  > /out/x\n"),
    "CRLF": (
        "FROM ubuntu:24.04\r\nENV A=b\r\nRUN mkdir /out && \\\r\n  echo $A > /out/x\r\nWORKDIR /out\r\n"),
    "BOM and tabs": (
        "\ufeffFROM ubuntu:24.04\n\tRUN\tmkdir /out;\techo\ta > /out/x\nENV\tA=b\n"),
    "shift": (
        "FROM ubuntu:24.04\nRUN mkdir /out && python3 -c 'print(1 << 20)' > /out/x\nWORKDIR /app\nCOPY f .\n"
        "COPY f /out/\nUSER 7\n"),
    "here-string": (
        "FROM ubuntu:24.04\nRUN mkdir /out && bash -c 'cat <<< abc > /out/x'\nWORKDIR /out\nCOPY f .\n"),
    "quoted": (
        'FROM ubuntu:24.04\nRUN mkdir /out && echo \' <<EOF \' "<<X" > /out/x\nENV A=1\n'),
    "JSON": (
        'FROM ubuntu:24.04\nCOPY ["a b", "f", "/out/"]\nRUN ["/bin/sh", "-c", "echo \\"<<E\\" > /out/x"]\n'
        'ENTRYPOINT ["a"]\n'),
    "variables": (
        'FROM ubuntu:24.04\nARG A=1 B=\'2 3\'\nENV C=$A D=${B:-4} E=${F:-5} G="a  b" H=\'$A\' I=\\$A\n'
        "RUN mkdir /out && echo $C $D > /out/x\n"),
    "old ENV": (
        'FROM ubuntu:24.04\nENV KEY some  text # no comment\nENV Q "a  b"\n'
        'RUN mkdir /out && echo "$KEY $Q" > /out/x\n'),
    "labels": (
        'FROM ubuntu:24.04\nLABEL a="b c" \\\n  d=\'e "f\'\nMAINTAINER me\nEXPOSE 80\nVOLUME /v\nSTOPSIGNAL 9\n'
        "RUN mkdir /out\n"),
    "ARG before FROM": (
        'ARG V=24.04\nARG N="ubuntu:$V"\nFROM $N\nARG V\nRUN mkdir /out && echo "[$V]" > /out/x\nENV V2=$V\n'),
    "default in FROM": (
        "FROM ubuntu:24.04 AS one\nARG V=7\nRUN mkdir /out && echo $V > /out/x\nFROM ubuntu:${V:-24.04}\n"
        "COPY --from=one /out /out\n"),
    "stages": (
        "FROM ubuntu:24.04 as b\nRUN mkdir /out && echo 1 > /out/x\nFROM b AS c\nENV A=1\nRUN echo 2 > /out/y\n"
        "FROM c\nCOPY --from=b /out/x /out/z\nCOPY --from=0 /out/x /out/w\n"),
    "COPY of an image": (
        'FROM ubuntu:24.04\nCOPY --from=tool:1 /etc/debian_version /out/\nCOPY --from="tool:1" \\\n'
        " /etc/passwd /etc/group /out/\n"),
    "mount of an image": (
        "FROM ubuntu:24.04\nRUN --mount=type=bind,from=tool:1,target=/m mkdir /out && cp /m/etc/passwd /out/\n"),
    "mounts": (
        "FROM ubuntu:24.04\n"
        "RUN --mount=type=bind,source=f,target=/f --mount=type=cache,target=/c mkdir /out && cp /f /out/g\n"),
    "owners and modes": (
        "FROM ubuntu:24.04\nCOPY --chown=7:8 --chmod=701 f /out/\nADD --chown=7 sub /out/sub\n"
        "RUN ls -ln /out | cut -c-20 > /out/x\nUSER 7:8\n"),
    "archive and ignored files": (
        "FROM ubuntu:24.04\nADD tar.tar.gz /out/\nCOPY . /out/all/\nCOPY s*b /out/sub/\n"),
    "in small letters": (
        "from ubuntu:24.04\nrun mkdir /out\nworkdir /out\nworkdir sub\ncopy f .\nenv a=b\nuser nobody\n"),
    "platform": (
        "FROM --platform=$BUILDPLATFORM ubuntu:24.04\nRUN mkdir /out && uname -m > /out/x\n"),
    "ONBUILD": (
        "FROM ubuntu:24.04\nRUN mkdir /out\nONBUILD RUN echo a \\\n b > /out/x\n"),
    "ends in an escape": (
        "FROM ubuntu:24.04\nRUN mkdir /out && echo '#a' > /out/x \\\n"),
}
WORKED_OUT = {  # what buildah 1.28 does not read, or not as Docker does: the text of /out/x
    ('FROM ubuntu:24.04\nSHELL ["/bin/bash", "-c"]\nRUN mkdir /out \\\n && [[ 1 == 1 ]] && echo "$0" > /out/x\n'):
        "/bin/bash\n",
    ("FROM ubuntu:24.04\nRUN <<EOF\nmkdir /out\nprintf '%s|' $0 '\\n' \\\n  b > /out/x # c\nEOF\nUSER 7\n"):
        "/bin/sh|\\n|b|",
    ('FROM ubuntu:24.04\nSHELL ["/bin/bash", "-c"]\nRUN <<EOF\n'
     "[[ 1 == 1 ]] && mkdir /out && echo ${BASH_VERSION:+bash} > /out/x\nEOF\n"):
        "bash\n",
    ("FROM ubuntu:24.04\nRUN mkdir /out\nRUN <<EOF\n#!/usr/bin/env python3\n"
     "open('/out/x', 'w').write('<<EOF\\n')\nEOF\n"):
        "<<EOF\n",
    ("FROM ubuntu:24.04\nARG A=1\nRUN mkdir /out\nRUN cat <<-EOF > /out/x && cat - <<'B' >> /out/x\n\t$A # b\n"
     "\tEOF\n$A\\\nB\n"):
        "1 # b\n$A\\\n",
    ("FROM ubuntu:24.04\nUSER 7\nRUN <<EOF\n#!/bin/bash\nid -u > /tmp/x\nEOF\nUSER 0\n"
     "RUN mkdir /out && cp /tmp/x /out/\n"):
        "7\n",
    ("FROM ubuntu:24.04\nRUN --mount=type=bind,from=tool:1,target=/m <<EOF\nmkdir /out\n"
     "head -1 /m/etc/passwd > /out/x\nEOF\n"):
        "root:x:0:0:root:/root:/bin/bash\n",
    ("FROM ubuntu:24.04 AS one\nONBUILD RUN mkdir /out && \\\n echo 1 > /out/x\nFROM one\nRUN echo 2 >> /out/x\n"):
        "1\n2\n",
    ('FROM ubuntu:24.04 AS one\nSHELL ["/bin/bash", "-c"]\nFROM one\nRUN mkdir /out && echo "$0" > /out/x\n'):
        "/bin/bash\n",
    ("FROM ubuntu:24.04 AS Made\nRUN mkdir /out && echo 1 > /out/x\nFROM made\nCOPY --from=MADE /out/x /out/y\n"):
        "1\n",
}


@pytest.fixture(scope="module")
def build(tmp_path_factory, base):
    """Builds a Dockerfile and returns the image, and its files below /out: name -> (mode, content)."""
    place = tmp_path_factory.mktemp("builds")
    for name, text in CONTEXT.items():
        (place / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "context" / name).write_text(text)
    os.system(f"tar -C {place / 'context'} -czf {place / 'context' / 'tar.tar.gz'} f sub")
    builder = Builder(place / "store", place / "layers", 4.0)

    def made(text: str) -> tuple[Image, dict]:
        image = builder.build(Environment("one", "", place, text, place / "context", {BASE: base, TOOL: base},
                                          BUILD_SECONDS), place / "log")
        found = {}
        for layer in (place / "layers" / name for name in image.layers):
            found |= {str(file.relative_to(layer)): (oct(file.lstat().st_mode), file.is_file() and file.read_bytes())
                      for file in sorted((layer / "out").rglob("*"))}
        return image, found

    return made


def as_written(text: str, given: dict[str, str]) -> str:
    """A Dockerfile in which names of images are those of the store, and nothing else is replaced."""
    text = text.replace("ARG V=24.04\nARG N=\"ubuntu:$V\"", f"ARG V=24.04\nARG N=\"{given[BASE]}\"")
    text = text.replace("ubuntu:${V:-24.04}", f"${{V:-{given[BASE]}}}")
    return text.replace(BASE, given[BASE]).replace(TOOL, given[TOOL])


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_what_is_handed_to_buildah_builds_what_was_written(build, monkeypatch, name):
    text = AS_WRITTEN[name]
    assert dockerfiles.refusal(text) is None
    image, found = build(text)
    monkeypatch.setattr(dockerfiles, "rewritten", as_written)
    wanted, files = build(text)
    assert found == files
    assert found or name in ("labels", "ONBUILD")
    assert (image.variables, image.workdir, image.user, image.home) == (
        wanted.variables, wanted.workdir, wanted.user, wanted.home)


@pytest.mark.parametrize("text", WORKED_OUT)
def test_here_documents_and_shells_do_what_docker_does(build, text):
    assert dockerfiles.refusal(text) is None
    assert build(text)[1]["out/x"][1].decode() == WORKED_OUT[text]


USERS = "FROM ubuntu:24.04\nRUN useradd -u 1001 al && useradd -u 1002 bob && useradd -r daemons\n"


@pytest.mark.parametrize("line", [
    "RUN touch /a /b && chown al /a && chown -h bob /b", "COPY --chown=al f /a\nRUN find /opt -exec chown 1002 {} +",
    "RUN install -d -o al /d && ln -s d /e && chown -h bob /e", "RUN chown bob /opt\nUSER 1001",
    "USER al\nRUN touch /tmp/f\nUSER root\nRUN su bob -c 'touch /tmp/f2'"])
def test_files_of_two_users_are_refused_after_the_build(build, line):
    with refuses(NotBuilt, "al and bob"):
        build(f"{USERS}{line}\n")


@pytest.mark.parametrize("line", [
    "RUN chown 1003 /opt && chown daemons /srv && chown _apt /media\nUSER al", "RUN chown al /opt\nUSER 1001",
    "COPY --chown=al:bob f /f\nRUN chown root:bob /opt", "RUN chown bob /opt\nRUN chown al /opt"])
def test_files_of_one_user_are_built(build, line):
    assert build(f"{USERS}{line}\n")[0].digest


def test_layers_of_the_base_image_are_not_asked_for_owners(build, monkeypatch):
    asked = []
    monkeypatch.setattr(image_builder, "owners", lambda layer: asked.append(layer) or {})
    image, _ = build("FROM ubuntu:24.04 AS one\nRUN touch /a\nFROM one\nRUN touch /b\n")
    assert [layer.name for layer in asked] == image.layers[1:]
