"""Make pictures of each view of the console with the documents of the demo: docs/images/*.png.

Needs playwright and a Chromium of the system (`chromium`, or the environment variable CHROMIUM).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DOCUMENTS = sorted(path for path in (ROOT / "examples/demo/documents").iterdir() if path.is_file())
QUESTION = "At what average wind does the gantry crane have to stop working?"
VIEWS = {  # name of the picture -> address, and an element that the view has when it is complete
    "session": ("memory/sessions/Spring%20work", ".timeline"),
    "entry": ("memory/known", ".line"),
    "map": ("map", ".legend li"),
    "health": ("health", ".keys"),
}
MAP_GROUP = "harbour-handbook"
NOTES = (
    "The pier is to be painted before the first guests arrive on 15 May.",
    "Matti buys the blue paint, 40 litres, from the shop in Hanko.",
    "The paint was delivered on 3 May and is in the boat house.",
    "Aino asks for two volunteers for Saturday 9 May at nine.",
    "Liisa and Pekka have promised to come, and Pekka brings the ladder.",
    "The forecast for Saturday is dry, with a light wind from the south.",
    "Then we begin with the outer end, which needs a whole day to dry.",
    "The brushes of last year are still good; I have washed them.",
    "Somebody must close the pier for guests from Friday evening.",
    "I put the sign up on Friday at six.",
    "Coffee and soup for five are ordered from the harbour café.",
    "One of us does not eat meat, so the soup is without.",
    "The outer end is finished, and 12 litres of paint are left.",
    "The inner end follows on Saturday 16 May.",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "AGENTFORMER_EMBEDDER": "minilm", "AGENTFORMER_CLEAN_EVERY": "0"}
        server = subprocess.Popen(
            [sys.executable, "-m", "agentformer.cli", "serve", "--port", "0", "--log-format", "json"],
            cwd=folder,
            env={**environment, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            remember(address)
            take(address)
        finally:
            server.terminate()
            server.wait()


def remember(address: str) -> None:
    """Store a session with a summary, facts and core blocks."""
    for number, text in enumerate(NOTES):
        speaker = ("Aino", "Matti")[number % 2]
        body = {"session_id": "Spring work", "role": "user", "speaker": speaker, "content": text}
        post(f"{address}/api/memory/messages", body)
    post(f"{address}/api/memory/clean", {"session_id": "Spring work"})
    post(f"{address}/api/memory", {"content": "Aino prefers tea.", "kind": "preference"})
    post(f"{address}/api/memory", {"content": "The pier is painted every second spring.", "kind": "fact"})
    post(f"{address}/api/memory/core/human/append", {"text": "Aino is the harbour master and a vegetarian."})


def post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()


def take(address: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(
                color_scheme=scheme, locale="en-GB", viewport={"width": 1240, "height": 760}, reduced_motion="reduce"
            )
            if scheme == "light":
                add_documents(page, address)
            views(page, address, "" if scheme == "light" else "-dark")
            page.close()
        browser.close()
    for path in IMAGES.glob("*.png"):  # 256 colours halve the files
        Image.open(path).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def add_documents(page: Any, address: str) -> None:
    page.goto(f"{address}/#/documents")
    page.locator("input[type=file]").first.set_input_files(DOCUMENTS)
    page.locator(".file.done").nth(len(DOCUMENTS) - 1).wait_for(timeout=120_000)
    page.screenshot(path=IMAGES / "documents.png")


def views(page: Any, address: str, suffix: str) -> None:
    page.goto(f"{address}/#/ask")
    page.get_by_role("textbox").fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".cite").first.click(timeout=60_000)
    page.locator(".sheet img, .source-text").first.wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"ask{suffix}.png")
    for name, (path, there) in VIEWS.items():
        page.goto(f"{address}/#/{path}")
        page.locator(there).first.wait_for()
        page.wait_for_timeout(300)
        if name == "map":
            page.get_by_label("Colour by").select_option("document")
            page.locator(".legend button", has_text=MAP_GROUP).click()
            page.locator(".view-map .line").first.wait_for()
        elif name == "entry":
            page.locator(".line button", has_text="pier").first.click()
            page.locator(".plot").wait_for()
        page.screenshot(path=IMAGES / f"{name}{suffix}.png")
    page.goto(f"{address}/#/memory/search")
    page.get_by_role("searchbox").fill("Who paints the pier?")
    page.keyboard.press("Enter")
    page.locator(".found summary").first.click()
    page.screenshot(path=IMAGES / f"search{suffix}.png")


if __name__ == "__main__":
    main()
