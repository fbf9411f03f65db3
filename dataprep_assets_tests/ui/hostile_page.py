"""A web page of another origin that tries to control Dagster's webserver, like any page that an operator may visit.

It sends everything that a browser allows a page to send without asking: mutations in GETs, images, `text/plain` POSTs
and forms, reports of assets, a WebSocket, frames of the UI. It cannot read most answers; `tried` has those that it
could.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POOL = "hostile_pool"
"""The concurrency limit that it tries to set."""
ASSET = "hostile_asset"
"""The asset that it tries to report."""
_TRIES = """
const ui = %(ui)s, pool = %(pool)s, asset = %(asset)s;
const limit = `mutation { setConcurrencyLimit(concurrencyKey: "${pool}", limit: 3) }`;
const json = JSON.stringify({query: limit}), asked = encodeURIComponent(limit);
const plain = {method: 'POST', mode: 'no-cors', headers: {'Content-Type': 'text/plain'}};
const tried = {};
function form(action, method) {
  const made = document.createElement('form'), frame = document.createElement('iframe');
  frame.name = `f${Math.random()}`; document.body.append(frame, made);
  made.target = frame.name; made.action = action; made.method = method;
  const field = document.createElement('input');
  field.name = 'query'; field.value = limit; made.append(field); made.submit();
}
async function go() {
  new Image().src = `${ui}/graphql?query=${asked}`;
  form(`${ui}/graphql?query=${asked}`, 'POST');
  form(`${ui}/graphql`, 'GET');
  form(`${ui}/report_asset_materialization/${asset}`, 'POST');
  const sent = [
    ['get', `${ui}/graphql?query=${asked}`, {mode: 'no-cors'}],
    ['plain', `${ui}/graphql?query=${asked}`, {...plain, body: json}],
    ['json', `${ui}/graphql`, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: json}],
    ['report', `${ui}/report_asset_materialization/${asset}`, {...plain, body: '{}'}],
    ['bare', `${ui}/report_asset_materialization/${asset}`, {method: 'POST', mode: 'no-cors'}],
  ];
  for (const [name, url, options] of sent) {
    try { tried[name] = (await fetch(url, options)).type; } catch (error) { tried[name] = 'refused'; }
  }
  tried.socket = await new Promise(resolve => {
    const socket = new WebSocket(ui.replace('http', 'ws') + '/graphql', 'graphql-ws');
    socket.onopen = () => resolve('open');
    socket.onerror = () => resolve('refused');
  });
  const frame = document.createElement('iframe');
  frame.src = `${ui}/runs`; document.body.append(frame);
  await new Promise(resolve => { frame.onload = resolve; setTimeout(resolve, 5000); });
  tried.frames = window.frames.length;
  await new Promise(resolve => setTimeout(resolve, 2000));
  document.title = JSON.stringify(tried);
  document.body.append('all was tried');
}
go();
"""


@contextmanager
def hostile_page(ui: str) -> Iterator[str]:
    """Yield the address of a page, on its own port, that attacks the webserver at the address `ui`."""
    script = _TRIES % {name: json.dumps(value) for name, value in (("ui", ui), ("pool", POOL), ("asset", ASSET))}
    page = f"<!doctype html><title>kittens</title><body><script>{script}</script>".encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
