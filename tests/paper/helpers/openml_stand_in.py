"""A small server that answers as OpenML does, for one data set."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sklearn.datasets._openml as openml


def answers(data_id: int, arff: str, labels: list[str], address: str) -> dict[str, bytes]:
    """What the server says to each path."""
    names = [line.split()[1].strip("'") for line in arff.splitlines() if line.lower().startswith("@attribute")]
    description = {
        "id": str(data_id),
        "name": "stand-in",
        "version": "1",
        "description": "a stand-in",
        "format": "ARFF",
        "url": f"{address}/data/download/1/stand-in.arff",
        "file_id": "1",
        "status": "active",
        "default_target_attribute": ",".join(labels),
        "md5_checksum": hashlib.md5(arff.encode()).hexdigest(),
    }
    features = [
        {
            "index": str(i),
            "name": name,
            "data_type": "nominal" if name in labels else "numeric",
            "is_target": str(name in labels).lower(),
            "is_ignore": "false",
            "is_row_identifier": "false",
            "number_of_missing_values": "0",
        }
        for i, name in enumerate(names)
    ]
    return {
        f"/api/v1/json/data/{data_id}": json.dumps({"data_set_description": description}).encode(),
        f"/api/v1/json/data/features/{data_id}": json.dumps({"data_features": {"feature": features}}).encode(),
        f"/api/v1/json/data/qualities/{data_id}": json.dumps({"data_qualities": {"quality": []}}).encode(),
        "/data/download/1/stand-in.arff": arff.encode(),
    }


@contextmanager
def serving(monkeypatch, data_id: int, arff: str, labels: list[str]):
    """Answer scikit-learn's requests to OpenML from this process; yields the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = content.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    content = answers(data_id, arff, labels, address)
    for constant in ("_DATA_INFO", "_DATA_FEATURES", "_DATA_QUALITIES"):
        theirs = getattr(openml, constant)
        monkeypatch.setattr(openml, constant, theirs.replace("https://www.openml.org", address))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
