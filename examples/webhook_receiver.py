"""Print each notice posted to a port of this machine as a JSON object: python webhook_receiver.py 8000.

It replaces a real webhook in a trial. A notice that was printed once is not printed again.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

seen = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Idempotency-Key"] not in seen:
            seen.add(self.headers["Idempotency-Key"])
            print(json.dumps(body), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
