"""What OpenAI's client builds at its first request is there before attempts are forked."""

import json
import subprocess
import sys
import textwrap

import pytest

FIRST_REQUEST = textwrap.dedent("""
    import asyncio, json, os, sys, threading, time
    from http.server import BaseHTTPRequestHandler, HTTPServer
    import numpy, openai  # numpy, whose threads are none of the client's, as the process that forks has it
    from ouroboros.workflows.attempts.warm import COMPLETION, warm_clients

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            said = json.dumps(COMPLETION).encode()
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_):
            pass

    before_threads = len(os.listdir("/proc/self/task"))
    if sys.argv[1] == "warm":
        warm_clients()
    asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))  # as agents do that are plain functions
    late = time.monotonic() + 5  # the kernel lists a thread that was joined a moment longer
    while (threads := len(os.listdir("/proc/self/task")) - before_threads) and time.monotonic() < late:
        time.sleep(0.01)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    before = set(sys.modules)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}", api_key="-")
    client.chat.completions.create(model="-", messages=[{"role": "user", "content": "-"}])
    late = [name for name in set(sys.modules) - before if name.partition(".")[0] in ("openai", "httpx2", "httpcore2")]
    print(json.dumps([len(late), threads]))
""")


@pytest.mark.parametrize(("how", "imports"), [("cold", True), ("warm", False)])
def test_a_first_request_imports_nothing_after_warming_and_warming_leaves_no_thread(how, imports):
    ended = subprocess.run([sys.executable, "-c", FIRST_REQUEST, how], capture_output=True, check=True, text=True)
    late, threads = json.loads(ended.stdout)
    assert ((late > 0), threads) == (imports, 0)


TRACED = textwrap.dedent("""
    import functools, logging, openai
    from openai.resources.chat.completions import AsyncCompletions, Completions
    from ouroboros.workflows.attempts.warm import warm_clients

    logging.basicConfig(level=logging.INFO)
    traced = []

    def tracing(create):
        @functools.wraps(create)
        def called(*arguments, **named):
            traced.append(named["model"])
            return create(*arguments, **named)
        return called

    for kind in (Completions, AsyncCompletions):
        kind.create = tracing(kind.create)
    warm_clients()
    logging.info("and goes on")
    print(len(traced))
""")


def test_a_module_that_traces_and_logs_requests_sees_none_of_warming():
    ended = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, check=True, text=True)
    assert (ended.stdout.split(), ended.stderr) == (["0"], "INFO:root:and goes on\n")
