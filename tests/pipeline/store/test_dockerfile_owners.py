"""Which users files of an image belong to, as far as a Dockerfile says."""

import pytest

from ouroboros.pipeline.store.dockerfile_owners import owners
from ouroboros.pipeline.store.harbor import read_task
from tests.harbor_kit import write_task


@pytest.mark.parametrize("line", [
    "RUN chown -R bob:bob /srv", 'RUN ["chown", "-R", "bob", "/srv"]', "RUN install -d -o bob /srv",
    "RUN install -Do bob f /srv", "RUN install --owner=bob f /srv", "RUN install --owner bob f /s",
    "RUN chown --from=root bob /srv", "USER bob\nRUN touch /f",
    "COPY --chown=bob:al a b", "ADD --chmod=1 --chown='bob' a b", "RUN mkdir /a && /bin/chown 'bob':al /a",
    "RUN find / -exec chown bob {} +", "RUN ls | xargs chown -h bob", "RUN if true; then sudo install -o bob f /s; fi",
    'RUN ["/bin/bash", "-c", "mkdir /a; chown bob /a"]', 'RUN bash -c "chown bob /a"', "RUN <<EOF\nchown bob /a\nEOF",
    "RUN a \\\n  # c\n  && chown \\\n bob /a", "ARG W=bob\nRUN chown $W:${W} /a", "ENV W bob\nUSER ${W}\nRUN true",
    "RUN { chown bob /a; }", "RUN chown ${W:-bob} /a", "USER bob:al\nRUN true\nUSER root\nRUN true"])
@pytest.mark.parametrize("before", ["FROM x\n", "FROM x AS one\nRUN true\nFROM one\n"])
def test_two_owners_are_found(line, before, tmp_path):
    assert owners(f"{before}{line}\n") == {"bob"}
    reason = read_task(write_task(tmp_path, environment__Dockerfile=f"{before}{line}\nUSER al\n")).unsupported
    assert "al and bob" in reason


@pytest.mark.parametrize("line", [
    "RUN echo chown bob /a", "RUN printf 'chown bob'", "RUN apt-get install -o Dpkg::Options::=--force-confold jq",
    "RUN chown :bob /a", "RUN chown $(id -u) /a", "RUN chown `whoami` /a", "RUN chown $UNKNOWN /a",
    "USER bob\nUSER al", "RUN chown --reference=/bob /a", "RUN chown root:bob /a", "USER bob\nCOPY a b",
    "RUN cat <<EOF > /f\nchown bob /a\nEOF",
    "FROM x", "RUN useradd -m bob", "RUN chown al /a", "RUN true # no-chown bob"])
def test_one_owner_is_one(line):
    assert owners(f"FROM x\n{line}\nUSER al\n") == {"al"}


def test_owners_are_those_of_the_stages_that_the_last_one_begins_with():
    text = "FROM x AS one\nRUN chown bob /a\nUSER bob\nFROM {} AS two\nRUN true\nFROM two\nUSER al\n"
    assert owners(text.format("One")) == {"bob", "al"}
    assert owners(text.format("y")) == {"al"}


def test_variables_are_those_of_arguments_and_of_earlier_stages():
    assert owners("ARG W=bob\nFROM x\nARG W\nRUN chown $W /a\n") == {"bob"}
    assert owners("ARG W=bob\nFROM x\nRUN chown $W /a\n") == set()
    assert owners("FROM x AS one\nENV W=bob V=al\nARG V=eve\nFROM one\nRUN chown $W /a\nUSER $V\n") == {"bob", "al"}
