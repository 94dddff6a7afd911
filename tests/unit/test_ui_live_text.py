"""The pace of growing text: first piece at once, later ones in batches, and nothing sent twice."""

from __future__ import annotations

import asyncio

from llm_backend.ui.live_text import SHORTEST_INTERVAL_S, LiveText, Pacer


class Screen:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []

    async def stream_token(self, token: str, is_sequence: bool = False) -> None:
        self.sent.append((token, is_sequence))


async def test_sends_only_what_is_new() -> None:
    screen = Screen()
    live = LiveText(screen)
    for text in ("a", "ab", "ab", "abcd"):
        await live.show(text)
    assert screen.sent == [("a", False), ("b", False), ("cd", False)]


async def test_sends_everything_when_the_beginning_changed() -> None:
    screen = Screen()
    live = LiveText(screen)
    await live.show("**a：**b")
    await live.show("**a**：b")
    assert screen.sent[-1] == ("**a**：b", True)


async def test_the_first_piece_comes_at_once_and_the_last_without_another() -> None:
    flushed: list[float] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def flush() -> int:
        flushed.append(loop.time())
        if len(flushed) == 2:
            done.set()
        return 1

    async with Pacer(flush) as pacer:
        began = loop.time()
        pacer.poke()
        while not flushed:
            await asyncio.sleep(0)
        for _ in range(50):
            pacer.poke()
        await asyncio.wait_for(done.wait(), 5)
    assert flushed[0] - began < SHORTEST_INTERVAL_S / 2
    assert flushed[1] - flushed[0] >= SHORTEST_INTERVAL_S * 0.9
    assert len(flushed) == 2, "fifty pokes within one interval are one flush"


async def test_leaving_lets_a_flush_finish() -> None:
    entered, finished = asyncio.Event(), False

    async def flush() -> int:
        nonlocal finished
        entered.set()
        for _ in range(5):
            await asyncio.sleep(0)
        finished = True
        return 0

    async with Pacer(flush) as pacer:
        pacer.poke()
        await entered.wait()
    assert finished


async def test_nothing_is_waited_for_while_the_screen_is_empty() -> None:
    """A held-back tag shows nothing; the first visible piece must not wait for the next interval."""
    flushes = 0
    shown = asyncio.Event()

    async def flush() -> int:
        nonlocal flushes
        flushes += 1
        if flushes == 2:
            shown.set()
        return 0

    async with Pacer(flush) as pacer:
        pacer.poke()
        while flushes < 1:
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        pacer.poke()
        await asyncio.wait_for(shown.wait(), 5)
        assert asyncio.get_running_loop().time() - began < SHORTEST_INTERVAL_S / 2
