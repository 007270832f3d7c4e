"""A Hugging Face hub on loopback: what huggingface_hub asks of one, for repositories that a test makes."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


class Hub:
    """Repositories by name (`org/name`, `datasets/org/name`), each with commits: sha -> {file: bytes}.

    private: repositories that clients made -> whether they are private.
    requests: (method, path) of each, in order. refuse: repository -> (status, X-Error-Code). cut: files whose body ends
    halfway, with how many times more. flip: files of which one bit is wrong on the way.
    """

    def __init__(self):
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.heads: dict[tuple[str, str], str] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.refuse: dict[str, tuple[int, str]] = {}
        self.cut: dict[str, int] = {}
        self.flip: set[str] = set()
        self.private: dict[str, bool] = {}  # repositories that clients made
        self.address = ""

    def push(self, repository: str, files: dict[str, bytes | str], branch: str = "main") -> str:
        """Commits files; returns the commit."""
        held = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
        sha = hashlib.sha1(repr((repository, sorted(held.items()))).encode()).hexdigest()
        self.commits.setdefault(repository, {})[sha] = held
        self.heads[repository, branch] = sha
        return sha

    def answer(self, method: str, path: str, range_: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        assert parts[0] != "api" or parts[1] in ("models", "datasets"), path
        api = parts[0] == "api"
        if api:
            parts = parts[1:] if parts[1] == "datasets" else parts[2:]
        length = 3 if parts[0] == "datasets" else 2
        repository, rest = "/".join(parts[:length]), parts[length:]
        if repository in self.refuse:
            status, code = self.refuse[repository]
            return status, {"X-Error-Code": code}, b"{}"
        if repository not in self.commits:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        revision = rest[1] if len(rest) > 1 else "main"
        sha = self.heads.get((repository, revision), revision)
        if sha not in self.commits[repository]:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.commits[repository][sha]
        if api and rest[:1] == ["tree"]:
            return 200, {}, json.dumps([{"type": "file", "path": name, "size": len(body), "oid": _git(body)}
                                        for name, body in sorted(files.items())]).encode()
        if api:
            return 200, {}, json.dumps({"id": "/".join(parts[length - 2:length]), "sha": sha}).encode()
        return self._file(files, "/".join(rest[2:]), sha, method, range_)

    def upload(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of what a client posts that makes a repository and commits files to it."""
        parts = path.strip("/").split("/")[1:]
        if parts == ["repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.refuse:
                return self.refuse[name][0], b"{}"
            self.private[name] = asked.get("private", asked.get("visibility") == "private")
            return 200, json.dumps({"url": f"{self.address}/{name}", "name": name}).encode()
        if parts == ["validate-yaml"]:
            errors = [{"message": "base_model"}] * ("base_model: /" in json.loads(body)["content"])
            return 400 if errors else 200, json.dumps({"errors": errors, "warnings": []}).encode()
        name = "/".join(parts[1:3])
        if parts[3] == "preupload":
            files = [one | {"uploadMode": "regular", "shouldIgnore": False} for one in json.loads(body)["files"]]
            return 200, json.dumps({"files": files}).encode()
        assert parts[3] == "commit", path
        lines = [json.loads(line) for line in body.splitlines()]
        sha = self.push(name, {one["value"]["path"]: base64.b64decode(one["value"]["content"]) for one in lines
                               if one["key"] == "file"})
        return 200, json.dumps({"commitUrl": f"{self.address}/{name}/commit/{sha}", "commitOid": sha}).encode()

    def _file(self, files, name: str, sha: str, method: str, range_: str | None):
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        body, first = files[name], 0
        if range_:
            first = int(range_.removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{_etag(name, body)}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes",
                   "Content-Length": str(len(body) - first)}
        if range_:
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        sent = bytes([body[first] ^ 1]) + body[first + 1 :] if name in self.flip else body[first:]
        if method == "GET" and self.cut.get(name, 0):
            self.cut[name] -= 1
            sent = sent[:len(sent) // 2]
        return 206 if range_ else 200, headers, sent


def _etag(name: str, body: bytes) -> str:
    """As the hub has it: the sha256 of a large file, for others the hash that git has."""
    return hashlib.sha256(body).hexdigest() if name.endswith((".safetensors", ".bin", ".parquet")) else _git(body)


def _git(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hub.requests.append((self.command, self.path))
            hub.tokens.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(self.command, self.path, self.headers.get("Range"))
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def do_POST(self):
            hub.requests.append((self.command, self.path))
            hub.tokens.add(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = hub.upload(urlsplit(self.path).path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words):
            pass

    return Handler


@contextmanager
def serving(hub: Hub):
    """The address of a hub while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use(monkeypatch: pytest.MonkeyPatch, address: str, cache, offline: bool = False) -> None:
    """Points huggingface_hub in this process, and in those that it starts, to a hub and a cache."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int(offline)))
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_this_test")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 99,
         "max_position_embeddings": 4096, "tie_word_embeddings": True}


def model(**more: bytes | str) -> dict[str, bytes | str]:
    """The files of a model repository, as far as planning looks at them; more: further ones, or other content."""
    return {"config.json": json.dumps(QWEN2), "tokenizer_config.json": "{}", "tokenizer.json": "{}",
            "model.safetensors": b"w" * 1000, "pytorch_model.bin": b"b" * 2000, "model.gguf": b"g" * 3000,
            "original/consolidated.pth": b"o" * 10, "onnx/model.onnx": b"x" * 10, "README.md": "a model", **more}
