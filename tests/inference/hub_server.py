"""A stand-in for the Hugging Face hub: repositories in memory, over a real socket."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Files = dict[str, bytes]


class Hub:
    """Commits by repository, and the latest commit of every branch."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.private: dict[str, bool] = {}

    def commit(self, repo: str, branch: str, files: Files) -> str:
        parent = self.branches.setdefault(repo, {}).get(branch)
        whole = (self.commits[repo][parent] if parent else {}) | files
        oid = hashlib.sha1(repr(sorted(whole.items())).encode()).hexdigest()
        self.commits.setdefault(repo, {})[oid] = whole
        self.branches[repo][branch] = oid
        return oid

    def find(self, repo: str, revision: str) -> tuple[str, Files] | None:
        oid = self.branches.get(repo, {}).get(revision, revision)
        files = self.commits.get(repo, {}).get(oid)
        return None if files is None else (oid, files)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def _send(self, content: Any, code: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _missing(self) -> None:
        self._send({"error": "not found"}, 404, X_Error_Code="RepoNotFound")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            found = self.hub.find(match[1], match[2] or "main")
            if found is None:
                return self._missing()
            listed = [{"rfilename": name} for name in found[1]]
            facts = {"id": match[1], "sha": found[0], "siblings": listed}
            return self._send(facts | {"private": self.hub.private.get(match[1], False)})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            found = self.hub.find(match[1], match[2])
            if found is None:
                return self._missing()
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in found[1].items()
            ]
            return self._send(entries)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self.hub.find(match[1], match[2])
            if found is None or match[3] not in found[1]:
                return self._missing()
            data = found[1][match[3]]
            return self._send(data, ETag=f'"{_etag(data)}"', X_Repo_Commit=found[0])
        return self._missing()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self._send({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if repo not in self.hub.branches:
                self.hub.commit(repo, "main", {})
                self.hub.private[repo] = asked.get("visibility") == "private" or bool(
                    asked.get("private")
                )
            return self._send({"url": f"https://huggingface.co/{repo}"})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            hub, (repo, branch) = self.hub, match.groups()
            hub.branches[repo].setdefault(branch, hub.branches[repo]["main"])
            return self._send({})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            plan = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._send({"files": plan})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            lines = [json.loads(line) for line in body.splitlines() if line]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            oid = self.hub.commit(match[1], match[2], files)
            url = f"https://huggingface.co/{match[1]}/commit/{oid}"
            return self._send({"commitUrl": url, "commitOid": oid, "success": True})
        return self._missing()


def _etag(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve the hub; yields its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
