"""What is read of a Dockerfile, and what buildah gets: continued lines, here-documents, names of images, platforms."""

import json
from itertools import pairwise

import pytest

from ouroboros.pipeline.store import dockerfiles
from ouroboros.pipeline.store.dockerfile_text import instructions
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.pipeline.store.images import environments
from tests.harbor_kit import write_task


def read(text: str) -> list[tuple[str, str]]:
    return [(one.name, one.rest) for one in instructions(text)]


def rewritten(text: str, **given: str) -> list[str]:
    """Lines behind the first one, FROM."""
    return dockerfiles.rewritten(text, given).splitlines()[1:]


@pytest.mark.parametrize(("text", "found"), [
    ("ENV A=ab\\\ncd", ("ENV", "A=abcd")), ("RUN a \\ \t\n   b", ("RUN", "a    b")),
    ("RUN a &&\\\n# c\n\n  # c \\\n b", ("RUN", "a && b")), ("RUN a \\\r\n b\r\n", ("RUN", "a  b")),
    ("# escape=`\nRUN a `\nb \\", ("RUN", "a b \\")), ("#syntax=x\n# ESCAPE = `\nRUN a`\nb", ("RUN", "ab")),
    ("#\n# escape=`\nRUN a\\\nb", ("RUN", "ab")), ("\ufeffRUN a", ("RUN", "a")), ("\n\trun\ta\tb ", ("RUN", "a\tb")),
    ("RUN a \\", ("RUN", "a")), ("RUN \\\n  a", ("RUN", "a")), ("RUN printf '\f\u2028'", ("RUN", "printf '\f\u2028'"))])
def test_lines_are_joined_as_docker_joins_them(text, found):
    assert read(text) == [found]


def test_two_escapes_end_a_line_and_are_refused_since_buildah_joins_it():
    assert read("RUN a \\\\\nRUN b") == [("RUN", "a \\\\"), ("RUN", "b")]
    assert "\\\\" in dockerfiles.refusal("FROM x\nRUN a \\\\\nRUN b")


@pytest.mark.parametrize("line", [
    "RUN python3 -c 'print(1 << 20)'", "RUN echo $((1 << 2))", "RUN bash -c 'cat <<< x'", "RUN cat <<<x",
    "RUN cat << EOF",
    "RUN echo '<<EOF'", 'RUN echo "a <<EOF"', "RUN cat <<WITHOUT", 'RUN ["cat", "<<EOF"]', "CMD cat <<EOF",
    "RUN a<<EOF", "RUN don't <<EOF", "RUN cat \\<<EOF"])
def test_what_is_no_here_document_takes_no_lines(line):
    text = f"FROM x\n{line}\nUSER me\nEOF\n"
    assert [name for name, _ in read(text)] == ["FROM", line.split()[0], "USER", "EOF"]
    assert rewritten(text)[0] == line


@pytest.mark.parametrize(("begin", "end"), [
    ("<<EOF", "EOF"), ("<<'EOF'", "EOF"), ('<<"A-1"', "A-1"), ("<<-EOF", "\tEOF"),
    ("3<<EOF", "EOF"), ("<<\\EOF", "EOF")])
def test_here_documents_end_at_their_line(begin, end):
    text = f"FROM x\nRUN cat {begin} > /f\n USER a\\\n# c\n\n{end} \n{end}\nUSER me"
    one = list(instructions(text))[1]
    assert one.documents[0].text == f" USER a\\\n# c\n\n{end} \n"
    assert [name for name, _ in read(text)] == ["FROM", "RUN", "USER"]


def command(text: str) -> list[str]:
    """The JSON form of the last instruction."""
    return json.loads(rewritten(text)[-1].removeprefix("RUN "))


def test_a_here_document_is_run_by_the_shell_of_its_stage():
    assert command("FROM x\nRUN <<X\necho 1\nX") == ["/bin/sh", "-c", "echo 1\n"]
    bash = 'FROM x AS one\nSHELL ["/bin/bash", "-ec"]\nRUN true\n'
    assert command(f"{bash}RUN <<-X\n\techo 1\n\tX") == ["/bin/bash", "-ec", "echo 1\n"]
    assert command(f"{bash}FROM ONE\nRUN <<X\nX")[0] == "/bin/bash"
    assert command(f"{bash}FROM x\nRUN <<X\nX")[0] == "/bin/sh"
    assert command(f'{bash}RUN [[ 1 ]] \\\n && "b"') == ["/bin/bash", "-ec", '[[ 1 ]]  && "b"']
    assert rewritten(f'{bash}RUN ["a"]')[-1] == 'RUN ["a"]'
    assert command("FROM x\nRUN cat <<A - <<-'B' > f\n$x\nA\n\tb\n\tB") == [
        "/bin/sh", "-c", "cat <<A - <<-'B' > f\n$x\nA\n\tb\nB"]
    *launch, script = command("FROM x\nRUN <<X\n#!/usr/bin/env python3\nprint(1)\nX")
    assert (launch[:2], script) == (["/bin/sh", "-c"], "#!/usr/bin/env python3\nprint(1)\n")


def test_options_of_run_stay_outside_of_the_script():
    assert rewritten("FROM x\nRUN --mount=type=cache,target=/c --network=none <<X\necho\nX") == [
        'RUN --mount=type=cache,target=/c --network=none ["/bin/sh", "-c", "echo\\n"]']


def test_instructions_that_name_no_image_are_handed_on_as_written():
    lines = "RUN a && \\\n  # c\n\n  'b \\\n c'\nENV A=\"b  c\" \\\n  D=e\nCOPY [\"a b\", \"/c\"]\nONBUILD RUN x"
    assert "\n".join(rewritten(f"FROM x\n# c\n\n{lines}\n")) == lines
    assert dockerfiles.rewritten("# escape=`\nFROM x\nRUN a `\n b", {}).splitlines()[::2] == ["# escape=`", "RUN a `"]


@pytest.mark.parametrize(("text", "images"), [
    ("ARG TAG=24.04\nFROM ubuntu:${TAG} AS one\nFROM ghcr.io/a/b\nFROM One\nFROM scratch",
     ["ubuntu:24.04", "ghcr.io/a/b"]),
    ("ARG A='1' B=x:$A\nARG A=2\nFROM $B\nFROM x:$A", ["x:1", "x:2"]),
    ("FROM x\nARG V=7\nFROM y:${V:-1}", ["x", "y:1"]), ("ARG V\nFROM x:${V:-1}${V-2}${V:+3}${V+4}", ["x:12"]),
    ("ARG V=\nFROM x:1${V:-2}${V-3}${V:+4}${V+5}", ["x:125"]),
    ("FROM x AS one\nFROM y\nCOPY --from=tool:1 a b\nCOPY --from=ONE a b\nCOPY --from=0 a b\nCOPY --from=7 a b",
     ["x", "y", "tool:1", "7"]),
    ("FROM x\nRUN --mount=type=bind,from=tool:1,target=/t --mount=from=x2 ls\nRUN --mount=type=cache,target=/c ls",
     ["x", "tool:1", "x2"]),
    ("FROM x\nRUN echo --from=a\nADD --chown=a b c\nCOPY --chown=1 --from='t:1' b c", ["x", "t:1"])])
def test_images_are_what_is_no_stage(text, images):
    assert dockerfiles.bases(text) == images
    assert dockerfiles.refusal(text) is None


def test_a_given_image_has_all_its_names():
    named = ("docker.io/library/ubuntu:latest", "ubuntu", "library/ubuntu", "ubuntu:24.04", "ghcr.io/a/ubuntu")
    text = "\n".join(f"FROM {name}" for name in named)
    assert dockerfiles.given_bases(text, {"ubuntu": "base.tar"}) == dict.fromkeys(named[:3], "base.tar")
    assert dockerfiles.given_bases("FROM u@sha256:1", {"docker.io/library/u@sha256:1": "x"}) == {"u@sha256:1": "x"}


def test_names_of_images_and_stages_are_replaced():
    given = {"ubuntu:24.04": "localhost/u", "tool:1": "localhost/t"}
    text = ("FROM ubuntu:24.04 as One\nCOPY --chown=1 --from=tool:1 \\\n  a b\n"
            "RUN --mount=type=bind,from=tool:1,target=/t ls\n"
            "RUN --mount=from=a/b,target=/t <<X\nls\nX\nFROM oNE\nCOPY --from=one tool:1 b\nCOPY --from=0 a b")
    assert dockerfiles.rewritten(text, given).splitlines() == [
        "FROM localhost/u as One", "COPY --chown=1 --from=localhost/t a b",
        "RUN --mount=type=bind,from=localhost/t,target=/t ls",
        'RUN --mount=from=docker.io/a/b:latest,target=/t ["/bin/sh", "-c", "ls\\n"]', "FROM One",
        "COPY --from=One tool:1 b", "COPY --from=0 a b"]


def test_an_image_that_copy_names_is_in_the_identity(tmp_path):
    write_task(tmp_path / "tasks" / "one", environment__Dockerfile="FROM x\nCOPY --from=tool:1 /a /b\n")
    keys = []
    for content in ("1", "1", "2"):
        (tmp_path / "tool.tar").write_text(content)
        (one,) = environments([str(tmp_path / "tasks")], {"tool:1": str(tmp_path / "tool.tar")}, str(tmp_path))
        keys.append(one.key)
    assert [before == after for before, after in pairwise(keys)] == [True, False]
    assert one.bases == {"tool:1": tmp_path / "tool.tar"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_platforms_of_this_machine_are_accepted_and_others_refused(monkeypatch, machine):
    monkeypatch.setattr("platform.machine", lambda: machine)
    here, there = ("amd64", "arm64") if machine == "x86_64" else ("arm64", "amd64")
    for name in (f"linux/{here}", here, "$BUILDPLATFORM", "${TARGETPLATFORM}", "linux/$TARGETARCH", machine):
        text = f"FROM --platform={name} x:$TARGETARCH\n"
        assert dockerfiles.refusal(text) is None
        assert dockerfiles.rewritten(text, {}) == f"FROM docker.io/library/x:{here}\n"
    for name in (f"linux/{there}", there, f"windows/{here}", "linux/arm/v7", ""):
        assert f"--platform={name}" in dockerfiles.refusal(f"ARG P={name}\nFROM --platform=$P x")
    assert (dockerfiles.refusal("FROM --platform=linux/arm64/v8 x") is None) == (here == "arm64")


@pytest.mark.parametrize(("text", "reason"), [
    ("FROM ${A#b}", "${A#b}"), ("FROM x\nCOPY --from=$A b c", "--from=$A"), ("FROM --pull=always x", "--pull"),
    ("FROM x\nRUN --mount=type=bind,from=$A,target=/b ls", "from=$A"), ("FROM x\nADD <<EOF /a\ntext\nEOF", "ADD <<EOF"),
    ("FROM x\nONBUILD RUN <<EOF\ntext\nEOF", "ONBUILD RUN <<EOF"), ("FROM x\nRUN echo " + "a" * 65_527, "65536 bytes"),
    ("FROM x\nRUN <<EOF\n" + "echo a\n" * 9_000 + "EOF", "bytes"), ("ARG A=x", "FROM"),
    ("FROM x AS one\nONBUILD RUN a\nFROM one", "ONBUILD")])
def test_what_buildah_would_build_otherwise_is_refused(tmp_path, text, reason):
    assert reason in dockerfiles.refusal(text)
    assert reason in read_task(write_task(tmp_path, environment__Dockerfile=text)).unsupported


def test_the_longest_line_that_buildah_reads_is_accepted():
    assert dockerfiles.refusal("FROM x\nRUN echo " + "a" * 65_526) is None


@pytest.mark.parametrize(("line", "variables"), [
    ("ENV KEY some  text", {"KEY": "some  text"}), ('ENV A="b c" D=e\\ f', {"A": "b c", "D": "e f"}),
    ("ENV A=ab\\\ncd", {"A": "abcd"})])
def test_variables_of_tasks_without_an_image(tmp_path, line, variables):
    task = read_task(write_task(tmp_path, environment__Dockerfile=f"FROM x\n{line}\n"))
    assert (task.needs_image, task.variables) == (False, variables)


@pytest.mark.parametrize("line", [
    "ENV A=1 # c", "ENV KEY 1=2 '3'", 'WORKDIR "/a b"', 'COPY "numbers.txt" a', 'ENV KEY "a"',
    "COPY --link numbers.txt a"])
def test_what_has_other_quotes_needs_an_image(tmp_path, line):
    for text in (f"FROM x\n{line}\n", "# escape=`\nFROM x\n"):
        assert read_task(write_task(tmp_path, environment__Dockerfile=text)).needs_image
