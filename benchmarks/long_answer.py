"""How a very long answer feels in a browser: freezes, lag, and how soon Stop is obeyed.

A scripted engine sends into a real Chromium, at 400 tokens per second, 32,000 tokens of thinking with a
formula every 40 tokens and a short answer, and 8,000 tokens of answer without any thinking; each is asked
again and stopped half-way. A heartbeat in the page measures freezes as a person feels them: the longest time
in which nothing else could run there. On a machine with other work they are mostly that work, so the budget
is for the longest task's own processor time. Prints a table; exits 1 when a budget is missed.

    python benchmarks/long_answer.py [--thinking N] [--answer N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser.conftest import CHROMIUM, FLAGS, ask, running_app  # noqa: E402  # found by the line above
from scripted_engine import Reply, Script, ScriptedEngine, serving, tokenize  # noqa: E402

THINKING = 32_000
ANSWER = 8_000
RATE = 400.0
FREEZE_BUDGET_S = 0.5
FIRST_BUDGET_S = 1.0
LAG_BUDGET_S = 5.0
STOP_BUDGET_S = 1.0

HEARTBEAT = """
(() => {
  const beat = 20;
  let last = performance.now();
  window.freezes = [];
  setInterval(() => {
    const now = performance.now();
    if (now - last > beat + 50) window.freezes.push(now - last - beat);
    last = now;
  }, beat);
})();
"""
"""Milliseconds by which a beat came late, where that is more than a frame or three."""


@dataclass(frozen=True)
class Felt:
    """What one answer was like; times in seconds."""

    first: float
    freeze: float
    """The longest, waiting for a processor included."""
    task: float
    """Processor time of the page's longest task: the longest freeze on an idle machine."""
    busy: float
    """Processor time of all its tasks."""
    lag: float
    """From the engine's last token to the composer being free again."""
    rate: float
    """Tokens per second that the engine really sent."""


def words(count: int) -> str:
    """About `count` tokens of prose in paragraphs with a formula every 40 tokens."""
    sentence = " step by step we see that this holds for every number in the list and so on"
    formula = " \\(x^2+1\\)"
    block = sentence * 2 + formula + "."
    length = len(tokenize(block))
    lines = [block + ("\n\n" if number % 5 == 4 else "") for number in range(count // length + 1)]
    return "".join(lines)


def finish_asking(page: Page, answered: int) -> None:
    expect(page.get_by_test_id("run-line-summary")).to_have_count(answered, timeout=600_000)
    expect(page.locator("#chat-submit")).to_be_visible(timeout=60_000)


def last_run(app: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{app}/runs?limit=1") as response:
        (run,) = json.load(response)
    with urllib.request.urlopen(f"{app}/runs/{run['id']}") as response:
        found: dict[str, float] = json.load(response)
    return found


def task_times(trace: bytes) -> list[float]:
    """Processor seconds of each task on the page's main thread."""
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"].get("name") == "CrRendererMain"
    }
    return [
        event.get("tdur", 0) / 1e6
        for event in events
        if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in mains
    ]


def watch(page: Page, app: str, script: Script, text: str) -> Felt:
    """Ask once and let it come to its end."""
    script.enqueue(Reply(text=text, tokens_per_second=RATE))
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["toplevel"])
    page.evaluate("window.freezes = []")
    before = page.get_by_test_id("run-line-summary").count()
    began = time.monotonic()
    ask(page, "Go on for long")
    page.locator(".step[data-step-type=tool], .step[data-step-type=assistant_message]").nth(
        before * 2 if "<think>" in text else before
    ).wait_for(state="visible")
    first = time.monotonic() - began
    finish_asking(page, before + 1)
    whole = time.monotonic() - began
    freezes = page.evaluate("window.freezes")
    tasks = task_times(browser.stop_tracing())
    run = last_run(app)
    return Felt(
        first=first,
        freeze=max(freezes, default=0.0) / 1000,
        task=max(tasks),
        busy=sum(tasks),
        lag=whole - run["duration_s"],
        rate=run["tokens"] / run["duration_s"],
    )


def stop(page: Page, script: Script, text: str, after_s: float) -> float:
    """Seconds from the click to a free composer and an engine that has nothing left to do."""
    script.enqueue(Reply(text=text, tokens_per_second=RATE))
    before = page.get_by_test_id("run-line-summary").count()
    ask(page, "Go on, and I will stop you")
    page.locator("#stop-button").wait_for(state="visible")
    page.wait_for_timeout(after_s * 1000)
    began = time.monotonic()
    page.locator("#stop-button").click()
    page.locator("#stop-button").wait_for(state="hidden")
    while script.in_flight:
        page.wait_for_timeout(5)
    stopped = time.monotonic() - began
    finish_asking(page, before + 1)
    return stopped


def measure(thinking: int, answer: int) -> Iterator[tuple[str, str, str, bool]]:
    script = Script()
    script.max_model_len = 16 * max(thinking, answer)  # an answer may take a quarter of it
    kinds = {
        "thinking": (thinking, f"<think>\n{words(thinking)}\n</think>\n\n{words(300)}"),
        "answer": (answer, words(answer)),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(ScriptedEngine(script)) as engine,
        running_app(engine, Path(folder)) as app,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for kind, (tokens, text) in kinds.items():
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(app)
            expect(page.locator("#chat-input")).to_be_visible()
            page.evaluate(HEARTBEAT)
            felt = watch(page, app, script, text)
            # Twice as long, so that a slow machine does not come to the end before it is stopped.
            stopped = stop(page, script, text + words(tokens), 0.5 * tokens / RATE)
            page.close()
            kept = felt.task <= FREEZE_BUDGET_S
            yield from (
                (f"{kind}: first words after", f"{felt.first:.2f} s", "≤ 1 s", felt.first <= FIRST_BUDGET_S),
                (f"{kind}: longest task, its own time", f"{felt.task:.2f} s", "≤ 0.5 s", kept),
                (f"{kind}: longest freeze here", f"{felt.freeze:.2f} s", "", True),
                (f"{kind}: the page's work in all", f"{felt.busy:.1f} s", "", True),
                (f"{kind}: done after the engine", f"{felt.lag:.1f} s", "≤ 5 s", felt.lag <= LAG_BUDGET_S),
                (f"{kind}: engine sent", f"{felt.rate:.0f} tok/s", "", True),
                (f"{kind}: Stop obeyed after", f"{stopped:.2f} s", "≤ 1 s", stopped <= STOP_BUDGET_S),
            )
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--thinking", type=int, default=THINKING, help="tokens")
    parser.add_argument("--answer", type=int, default=ANSWER, help="tokens")
    asked = parser.parse_args()
    if not shutil.which(CHROMIUM):
        print("needs Chromium", file=sys.stderr)
        return 2
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}; "
        f"{asked.thinking:,} tokens of thinking, {asked.answer:,} of answer, {RATE:.0f} per second"
    )
    missed = 0
    for name, measured, budget, kept in measure(asked.thinking, asked.answer):
        said = f"budget {budget:8} {'kept' if kept else 'MISSED'}" if budget else ""
        print(f"  {name:38} {measured:>10}   {said}", flush=True)
        missed += not kept
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
