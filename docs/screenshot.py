"""Makes docs/divergence.png: a real divergence in the running chat.

    ENCORE_ENGINE=cpu ENCORE_PROFILE=fast ./start.sh --detach
    python docs/screenshot.py

Asks the demo model in Chromium, replays the answer while twelve other requests decode, and
photographs what the panel shows.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from playwright.async_api import async_playwright, expect

from llm_backend.config import load_settings
from llm_backend.engine.client import EngineClient
from llm_backend.load import neighbours
from llm_backend.receipt import Message, Sampling
from llm_backend.record import build_request
from llm_backend.tally import Shape

ROOT = Path(__file__).resolve().parent.parent
QUESTION = "What is 235 times 478?"
LOAD = 12
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


async def main() -> None:
    settings = load_settings()
    async with (
        async_playwright() as playwright,
        EngineClient(settings.urls()[0], manifest_file=settings.manifest_file) as engine,
    ):
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = await browser.new_page(viewport={"width": 1440, "height": 900}, device_scale_factor=2)
        await page.goto(f"http://127.0.0.1:{settings.app_port}")
        await page.locator("#chat-input").fill(QUESTION)
        await page.locator("#chat-submit").click()
        await expect(page.get_by_test_id("run-line-summary")).to_be_visible(timeout=120_000)
        identity = await engine.identity()
        request = build_request(identity.model, [Message(role="user", content=QUESTION)], Sampling())
        async with neighbours(engine, identity, request, count=LOAD, shape=Shape.MIXED):
            await page.get_by_role("button", name="Replay").last.click()
            await expect(page.get_by_test_id("run-line-verdict")).to_be_visible(timeout=120_000)
        await expect(page.get_by_test_id("run-line-verdict")).to_contain_text("Different from token")
        await page.get_by_test_id("replay-item").first.click()
        await expect(page.get_by_test_id("fork")).to_be_visible()
        await page.get_by_test_id("panel-diff").scroll_into_view_if_needed()
        await page.get_by_test_id("fork").scroll_into_view_if_needed()
        await page.screenshot(path=str(ROOT / "docs" / "divergence.png"))
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
