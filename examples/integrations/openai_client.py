"""The official client of OpenAI against a memory: a file, a vector store, and a search with a filter."""

import tempfile
import threading

from openai import OpenAI
from werkzeug.serving import make_server

from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.settings import load_settings

with tempfile.TemporaryDirectory() as folder:  # in place of this block: agentformer serve
    app = create_app(load_settings({"index_dir": folder, "upload_dir": folder, "embedder": "hashing"}))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    file = client.files.create(file=("rules.txt", b"The caretaker keeps the keys."), purpose="assistants")
    store = client.vector_stores.create(name="handbook")
    client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, attributes={"year": 2026})
    recent = {"type": "gte", "key": "year", "value": 2026}
    for hit in client.vector_stores.search(store.id, query="Who keeps the keys?", filters=recent):
        print(store.id, hit.filename, hit.content[0].text)

    server.shutdown()
    close_app(app)
