"""An OpenAI-compatible server on loopback that answers by a script: good, slow, broken, refused and malformed replies."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def said(text="hello", finish="stop", refusal=None, usage=(11, 7)):
    """A completion."""
    message = {"role": "assistant", "content": text} | ({"refusal": refusal} if refusal else {})
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "stub", "choices": [choice], "usage": counts}


def failed(status, message="forced", kind="server_error"):
    """An error of the protocol."""
    return status, {"error": {"message": message, "type": kind, "code": kind}}


class Handler(BaseHTTPRequestHandler):
    """Takes the next entry of `server.plan`: a text, a completion, (status, body), or a function of the handler."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Says nothing."""

    def do_POST(self):
        """One chat completion."""
        length = int(self.headers.get("Content-Length", 0))
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        self.server.keys.append(self.headers.get("Authorization"))
        item = self.server.plan.pop(0) if len(self.server.plan) > 1 else self.server.plan[0]
        if callable(item):
            item(self)
            return
        if isinstance(item, str):
            item = said(item)
        status, body = item if isinstance(item, tuple) else (200, item)
        self.send(status, json.dumps(body).encode())

    def send(self, status, body, kind="application/json"):
        """A whole response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def malformed(handler):
    """A page where JSON is expected."""
    handler.send(200, b"<html>proxy</html>", "text/html")


def half_json(handler):
    """JSON that ends early."""
    handler.send(200, b'{"id": "x", "choices": [{"message": ')


def dropped(handler):
    """The connection is closed in the middle of the headers."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-")
    handler.wfile.flush()
    handler.connection.close()
    handler.close_connection = True


def dripping(handler):
    """A byte now and then for a long time: no single read ever takes long."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            if handler.server.closing.wait(0.1):
                return
    except OSError:
        return


@contextmanager
def serving(*plan):
    """A running server; its last entry is repeated. Yields it; `address` is its api_base."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.plan, server.bodies, server.keys = list(plan), [], []
    server.closing = threading.Event()
    server.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()


__all__ = ["dripping", "dropped", "failed", "half_json", "malformed", "said", "serving"]
