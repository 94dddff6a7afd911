"""A bench session as a table, and the price of a profile or a flag in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_backend.layout import columns, literal, markdown_table, strict_json
from llm_backend.price import (
    BASELINE,
    Bench,
    Figure,
    Measured,
    applies_to,
    loads,
    of_profile,
    of_setting,
    ratio,
    spread,
)
from llm_backend.receipt import EngineFingerprint
from llm_backend.strings import Language, duration, text

_GIB = 1024**3


def bench_text(bench: Bench, lang: Language = "en") -> str:
    """Where and how it was measured, the table, and what was not measured."""
    lines = [machine_line(bench, lang), *method_lines(bench, lang), ""]
    return "\n".join([*lines, *columns(_table(bench, lang)), "", *_notes(bench, lang)]).rstrip()


def bench_markdown(bench: Bench, lang: Language = "en") -> str:
    parts = [literal(machine_line(bench, lang)), literal(" ".join(method_lines(bench, lang)))]
    parts.append(markdown_table(_table(bench, lang)))
    notes = [f"- {literal(note)}" for note in _notes(bench, lang)]
    return "\n\n".join([*parts, "\n".join(notes)]).rstrip()


def bench_json(bench: Bench, lang: Language = "en") -> str:
    """Every sample, and per engine the medians, ranges and ratios."""
    document: dict[str, Any] = bench.model_dump(mode="json")
    for row, measured in zip(document["engines"], bench.engines, strict=True):
        row["figures"] = [
            {
                "figure": figure,
                "neighbours": count,
                **found.model_dump(),
                "ratio_to_fast": ratio(measured, figure, count),
            }
            for figure in _FIGURES
            for count in loads(bench)
            if (found := spread(measured.samples, figure, count))
        ]
    return strict_json({"summary": machine_line(bench, lang), **document})


def machine_line(bench: Bench, lang: Language = "en") -> str:
    """Machine, versions and date: what every figure goes with."""
    machine = bench.machine
    return text(
        "bench.machine",
        lang,
        names=", ".join(machine.names) or None,
        cores=machine.cores,
        model=machine.model or None,
        vllm=machine.vllm_version,
        torch=machine.torch_version,
        encore=machine.encore_version,
        at=f"{bench.measured_at:%Y-%m-%d %H:%M} UTC",
    )


def method_lines(bench: Bench, lang: Language = "en") -> list[str]:
    """What was measured and how, and whether all of it was."""
    turns = "bench.in_turns" if bench.interleaved else "bench.not_in_turns"
    lines = [
        text("bench.method", lang, tokens=bench.tokens, prompt=bench.prompt_tokens, times=bench.times),
        text(turns, lang),
    ]
    return lines if bench.complete else [*lines, text("bench.cut_short", lang)]


def profile_price(bench: Bench | None, engine: EngineFingerprint, lang: Language = "en") -> str | None:
    """What the engine's profile costs on this machine; None where that was not measured."""
    if bench is None or not applies_to(bench, engine):
        return None
    measured = of_profile(bench, engine.profile)
    if measured is None:
        return None
    if measured.name == BASELINE:
        price = text("bench.price.baseline", lang, figures=_speeds(measured, bench, lang))
    else:
        price = _relative(measured, bench, lang)
    return text("bench.price", lang, price=price, machine=machine_line(bench, lang))


def setting_price(
    bench: Bench | None, engine: EngineFingerprint, name: str, value: str | None, lang: Language = "en"
) -> str | None:
    """What one flag or variable costs, as `fast` with only that changed; None where not measured."""
    if bench is None or not applies_to(bench, engine):
        return None
    measured = of_setting(bench, name, value)
    return _relative(measured, bench, lang) if measured else None


_FIGURES: tuple[Figure, ...] = ("tokens_per_second", "total_per_second", "ttft_s", "ttft_again_s")


def _relative(measured: Measured, bench: Bench, lang: Language) -> str:
    """`alone 0.98× fast's speed, with 8 neighbours 0.31× …`"""
    said = []
    for count in loads(bench):
        times = ratio(measured, "total_per_second", count)
        if times is not None:
            key = "bench.price.loaded" if count else "bench.price.alone"
            said.append(text(key, lang, times=times, neighbours=count))
    if (first := ratio(measured, "ttft_s", 0)) is not None:
        said.append(text("bench.price.first", lang, times=first))
    return text("verdict.and", lang).join(said)


def _speeds(measured: Measured, bench: Bench, lang: Language) -> str:
    said = []
    for count in loads(bench):
        if found := spread(measured.samples, "total_per_second", count):
            key = "bench.speed.loaded" if count else "bench.speed.alone"
            said.append(text(key, lang, speed=found.median, neighbours=count))
    return text("verdict.and", lang).join(said)


def _table(bench: Bench, lang: Language) -> list[tuple[str, ...]]:
    header = [text("bench.column.engine", lang), text("bench.column.alone", lang)]
    for count in loads(bench)[1:]:
        header += [
            text("bench.column.own", lang, neighbours=count),
            text("bench.column.total", lang, neighbours=count),
            text("bench.column.wait", lang, neighbours=count),
        ]
    header += [text(f"bench.column.{name}", lang) for name in ("first", "again", "start", "memory")]
    rows = [_row(measured, bench, lang) for measured in bench.engines if measured.samples]
    return [tuple(header), *rows]


def _row(measured: Measured, bench: Bench, lang: Language) -> tuple[str, ...]:
    def cell(figure: Figure, neighbours: int, show: Callable[[float], str]) -> str:
        found = spread(measured.samples, figure, neighbours)
        if found is None:
            return text("value.unknown", lang)
        shown = f"{show(found.median)} ({show(found.least)}–{show(found.most)})"
        times = ratio(measured, figure, neighbours)
        return shown if times is None else f"{shown} {times:.2f}×"

    cells = [measured.name, cell("tokens_per_second", 0, _speed)]
    for count in loads(bench)[1:]:
        cells += [
            cell("tokens_per_second", count, _speed),
            cell("total_per_second", count, _speed),
            cell("ttft_s", count, duration),
        ]
    cells += [cell("ttft_s", 0, duration), cell("ttft_again_s", 0, duration)]
    unknown = text("value.unknown", lang)
    cells.append(unknown if measured.start_seconds is None else duration(measured.start_seconds))
    cells.append(unknown if measured.memory_bytes is None else f"{measured.memory_bytes / _GIB:.1f} GiB")
    return tuple(cells)


def _notes(bench: Bench, lang: Language) -> list[str]:
    """Engines that did not start or broke off, flags that cannot be, and queues."""
    said = []
    for measured in bench.engines:
        if measured.failure:
            key = "bench.broke_off" if measured.samples else "bench.did_not_start"
            said.append(text(key, lang, name=measured.name, why=measured.failure))
        if any(sample.neighbours and not sample.neighbours_seen for sample in measured.samples):
            said.append(text("bench.queued", lang, name=measured.name))
    for name, why in bench.not_measured.items():
        said.append(text("bench.not_measured", lang, name=name, why=text(f"bench.why.{why}", lang)))
    return said


def _speed(value: float) -> str:
    return f"{value:.1f}"


def bench_progress(
    *,
    name: str,
    number: int,
    engines: int,
    round_: int,
    rounds: int,
    left: float | None,
    lang: Language = "en",
) -> str:
    key = "bench.progress" if round_ else "bench.progress.start"
    return text(
        key if left is None else f"{key}.left",
        lang,
        name=name,
        number=number,
        engines=engines,
        round=round_,
        rounds=rounds,
        left=left,
    )
