"""A proof claims what was measured for this engine, these settings, lengths and loads, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sample_receipts import ENGINE, engine, receipt, request, token
from sqlalchemy import event, text

from llm_backend.compare import Verdict, compare
from llm_backend.diagnose import diagnose
from llm_backend.proof import (
    ENOUGH,
    EngineNow,
    Proof,
    ProofState,
    Seen,
    compare_engines,
    sampling_class,
    tally_proof,
)
from llm_backend.proof_phrases import engine_now_sentence, proof_sentence, proof_short
from llm_backend.receipt import EngineFingerprint, Receipt, Sampling, Status
from llm_backend.run import Run
from llm_backend.store import Store
from llm_backend.store.database import migrate, migrate_down, open_database, writing

SAME = EngineNow(state="same")
IDENTICAL, DRIFTED, DIVERGED = Verdict.IDENTICAL, Verdict.DRIFTED, Verdict.DIVERGED


def run(**known: Any) -> Run:
    values = {
        "id": "r",
        "chat_id": "c",
        "kind": "ask",
        "question": "q",
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "status": "complete",
        "model": "m",
        "seed": 42,
        "greedy": True,
        "digest": "sha256:d",
        "neighbours": 0,
        "prompt_tokens": 30,
        "completion_tokens": 300,
        "fingerprint_digest": "sha256:f",
        "sampling_class": "greedy",
    }
    return Run(**{**values, **known})


def seen(count: int, verdict: Verdict = IDENTICAL, neighbours: int | None = 0, **lengths: int) -> Seen:
    lengths = {"prompt_tokens": 512, "answer_tokens": 300, **lengths}
    return Seen(neighbours=neighbours, verdict=verdict, comparisons=count, **lengths)


class TestState:
    def test_forty_of_forty_under_load(self) -> None:
        proof = tally_proof(run(), [seen(30), seen(10, neighbours=32)])
        assert proof.state is ProofState.PROVEN
        assert proof_sentence(proof) == (
            "Proven for this engine, greedy, prompts up to 512 and answers up to 300 tokens, up to 32 "
            "neighbours: 40 of 40 identical, so at least 91 % (Wilson 95 %)."
        )
        assert proof_short(proof, SAME) == "proven: 40 of 40, up to 32 neighbours"
        assert proof_short(proof, EngineNow(state="changed")).endswith("(another engine runs now)")

    def test_one_difference_ends_the_claim_and_names_the_load(self) -> None:
        proof = tally_proof(run(), [seen(37), seen(3, DIVERGED, 12)])
        assert proof.state is ProofState.DIFFERENT
        assert "3 of 40 came out differently with 12 neighbours" in proof_sentence(proof)

    def test_a_difference_beyond_this_runs_length_still_counts(self) -> None:
        proof = tally_proof(run(), [seen(40), seen(1, DIVERGED, 0, prompt_tokens=9000)])
        assert proof.state is ProofState.DIFFERENT
        assert "even alone" in proof_sentence(proof)

    def test_differences_under_several_loads(self) -> None:
        proof = tally_proof(run(), [seen(1, DIVERGED, 32), seen(1, DIVERGED, 4), seen(1, DIVERGED, None)])
        assert "3 of 3 came out differently with 4 to 32 neighbours" in proof_sentence(proof)

    def test_moved_probabilities_are_not_hidden(self) -> None:
        proof = tally_proof(run(), [seen(30), seen(10, DRIFTED)])
        assert proof.state is ProofState.SAME_WORDS
        assert "Probabilities moved in 10." in proof_sentence(proof)

    def test_few_comparisons_are_not_called_proof(self) -> None:
        assert tally_proof(run(), [seen(ENOUGH - 1)]).state is ProofState.SO_FAR
        assert tally_proof(run(), [seen(ENOUGH)]).state is ProofState.PROVEN

    def test_nothing_seen(self) -> None:
        assert tally_proof(run(), []).state is ProofState.NONE
        assert tally_proof(run(), [seen(3, Verdict.INCOMPARABLE)]).state is ProofState.NONE

    @pytest.mark.parametrize(
        ("longer", "said"),
        [
            ({"prompt_tokens": 513}, "prompt is longer"),
            ({"completion_tokens": 301}, "answer is longer"),
            ({"neighbours": 5}, "more neighbours"),
        ],
    )
    def test_a_run_beyond_what_was_tried_is_not_covered(self, longer: dict[str, int], said: str) -> None:
        proof = tally_proof(run(**longer), [seen(40, neighbours=4)])
        assert proof.state is ProofState.BEYOND
        assert said in proof_sentence(proof)
        assert tally_proof(run(neighbours=4), [seen(40, neighbours=4)]).state is ProofState.PROVEN

    def test_an_engine_that_hides_prompt_lengths_gets_no_claim_about_them(self) -> None:
        proof = tally_proof(run(prompt_tokens=0), [seen(40, prompt_tokens=0)])
        assert proof.state is ProofState.PROVEN
        assert "does not tell how long prompts are" in proof_sentence(proof)

    def test_without_a_seed_there_is_nothing_to_prove(self) -> None:
        unseeded = sampling_class(Sampling(temperature=0.8, seed=None))
        assert tally_proof(run(sampling_class=unseeded), [seen(40)]).state is ProofState.UNSEEDED

    @pytest.mark.parametrize("lang", ["en", "zh-CN"])
    @pytest.mark.parametrize("state", list(ProofState))
    def test_every_state_has_both_forms(self, state: ProofState, lang: Any) -> None:
        proof = Proof(state=state, settings="greedy", comparisons=3, same=2, exceeded=("prompt", "answer"))
        assert proof_sentence(proof, lang)
        assert proof_short(proof, SAME, lang)


class TestLoad:
    def test_one_busy_replay_is_no_proof_of_load(self) -> None:
        assert tally_proof(run(), [seen(39), seen(1, neighbours=32)]).neighbours == 0

    def test_busier_comparisons_speak_for_less_busy_ones_too(self) -> None:
        proof = tally_proof(run(), [seen(6, neighbours=32), seen(5, neighbours=16), seen(30)])
        assert proof.neighbours == 16

    def test_unknown_load_is_not_alone(self) -> None:
        proof = tally_proof(run(neighbours=None), [seen(40, neighbours=None)])
        assert proof.neighbours is None
        assert "load unknown" in proof_sentence(proof)

    def test_the_table_has_the_fewest_first_and_unknown_last(self) -> None:
        groups = [seen(2, neighbours=None), seen(3, neighbours=12), seen(1, DIVERGED, 12), seen(4)]
        loads = tally_proof(run(), groups).loads
        assert [(load.neighbours, load.same, load.comparisons) for load in loads] == [
            (0, 4, 4),
            (12, 3, 4),
            (None, 2, 2),
        ]


class TestSamplingClass:
    def test_greedy_is_one_class_whatever_the_seed_and_the_ignored_filters(self) -> None:
        variants = [Sampling(), Sampling(seed=7, top_p=0.5, top_k=3), Sampling(max_tokens=9, top_logprobs=0)]
        assert {sampling_class(one) for one in variants} == {"greedy"}

    def test_what_reaches_the_tokens_makes_another_class(self) -> None:
        sampled = {"temperature": 0.8, "seed": 1}
        classes = {
            sampling_class(one)
            for one in (
                Sampling(),
                Sampling(repetition_penalty=1.1),
                Sampling(**sampled),
                Sampling(**sampled, top_p=0.9),
                Sampling(**{**sampled, "seed": None}),
            )
        }
        assert len(classes) == 5

    def test_seeds_of_one_class_stand_together(self) -> None:
        one, other = Sampling(temperature=0.8, seed=1), Sampling(temperature=0.8, seed=2)
        assert sampling_class(one) == sampling_class(other) == "temperature=0.8"


class TestEngineNow:
    LAUNCHED = engine(argv=("--seed", "42"), system_fingerprint="fp")

    def test_a_live_identity_lacks_only_what_a_request_tells(self) -> None:
        now = compare_engines(self.LAUNCHED, engine(argv=("--seed", "42")), seeded=True)
        assert now.state == "same"
        assert engine_now_sentence(now) == ""

    def test_a_bit_relevant_change_is_named(self) -> None:
        now = compare_engines(self.LAUNCHED, engine(max_num_seqs=1, vllm_version="0.27.0"), seeded=True)
        assert now.state == "changed"
        said = engine_now_sentence(now)
        assert said == ("This engine is not the one running now: vLLM version, requests at a time changed.")

    def test_a_harmless_change_greys_nothing(self) -> None:
        before, after = engine(engine_seed=1), engine(engine_seed=2)
        assert compare_engines(before, after, seeded=True).state == "same"
        assert compare_engines(before, after, seeded=False).state == "changed"

    def test_what_one_side_does_not_tell_is_unknown(self) -> None:
        now = compare_engines(self.LAUNCHED, EngineFingerprint(model=ENGINE.model), seeded=True)
        assert now.state == "unknown"
        assert compare_engines(self.LAUNCHED, None, seeded=True).state == "away"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite+aiosqlite:///{tmp_path / 'encore.db'}")
    yield store
    await store.close()


async def recorded(store: Store, given: Receipt, neighbours: int | None = None, **begin: Any) -> Run:
    started = await store.begin(
        given.request, given.engine, chat_id="chat", neighbours=neighbours, **{"kind": "ask", **begin}
    )
    return await store.finish(started.id, given, ttft_s=0.1, duration_s=1.0)


async def replayed(store: Store, before: Receipt, after: Receipt, *loads: int | None) -> Run:
    """Two runs and their comparison; the loads are the reference's and the candidate's."""
    first = await recorded(store, before, loads[0] if loads else None)
    second = await recorded(
        store, after, loads[1] if loads else None, kind="replay", reference_run_id=first.id
    )
    found = compare(before, after)
    await store.add_comparison(first.id, second.id, found, diagnose(found, before, after, neighbours=None))
    return first


class TestStored:
    async def test_counts_by_load_and_verdict(self, store: Store) -> None:
        first = await replayed(store, receipt(), receipt(), 0, 12)
        await replayed(store, receipt(), receipt(), 3, None)
        await replayed(store, receipt(), receipt(), None, None)
        await replayed(store, receipt(), receipt([7, 8, 10, 11]), 0, 12)
        groups = {(g.neighbours, g.verdict): g for g in await store.seen(first)}
        assert {key: group.comparisons for key, group in groups.items()} == {
            (12, IDENTICAL): 1,
            (3, IDENTICAL): 1,
            (None, IDENTICAL): 1,
            (12, DIVERGED): 1,
        }
        assert (groups[12, DIVERGED].prompt_tokens, groups[12, DIVERGED].answer_tokens) == (3, 4)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (receipt(engine=engine(driver_version="1")), receipt(engine=engine(driver_version="1"))),
            (receipt(), receipt(engine=engine(system_fingerprint="other"))),
            (receipt(asked=request(temperature=0.8)), receipt(asked=request(temperature=0.8))),
            (receipt(), receipt([7], status=Status.STOPPED)),
            (receipt(), receipt(asked=request(prompt=(9,)))),
        ],
        ids=["another engine", "replayed elsewhere", "other settings", "stopped", "incomparable"],
    )
    async def test_what_does_not_count(self, store: Store, before: Receipt, after: Receipt) -> None:
        """Negative controls: each differs in one thing from a comparison that counts."""
        await replayed(store, before, after)
        mine = await recorded(store, receipt())
        assert await store.seen(mine) == []
        await replayed(store, receipt(), receipt())
        assert sum(group.comparisons for group in await store.seen(mine)) == 1

    async def test_a_run_that_is_still_going_has_no_proof(self, store: Store) -> None:
        given = receipt()
        running = await store.begin(given.request, given.engine, chat_id="chat", kind="ask")
        assert await store.seen(running) == []

    async def test_no_receipt_is_read(self, store: Store) -> None:
        """Bodies have megabytes: the plan may touch receipts only through the covering index."""
        mine = await replayed(store, receipt(), receipt(), 0, 0)
        asked: list[tuple[str, Any]] = []
        sync = store._engine.sync_engine
        event.listen(sync, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))
        await store.seen(mine)
        statement, values = next(call for call in asked if "matching" in call[0])
        async with store._engine.connect() as connection:
            rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            plan = [row.detail for row in rows]
        touching = [step for step in plan if "receipts" in step]
        assert touching
        assert all("COVERING INDEX ix_receipts_proof" in step for step in touching), plan
        assert not any(step == "SCAN runs" or step.startswith("SCAN comparisons") for step in plan), plan

    async def test_an_engine_is_found_by_its_digest(self, store: Store) -> None:
        await recorded(store, receipt([token(1)], engine=engine(threads=7)))
        assert (await store.engine(engine(threads=7).digest)).threads == 7

    async def test_older_receipts_get_their_class_from_their_body(self, tmp_path: Path) -> None:
        url = f"sqlite+aiosqlite:///{tmp_path / 'old.db'}"
        store = await Store.open(url)
        await recorded(store, receipt(asked=request(temperature=0.8, top_p=0.9)))
        await store.close()
        database = await open_database(url, busy_timeout_s=1)
        async with writing(database).begin() as connection:
            await connection.run_sync(migrate_down, "0001")
            columns = await connection.exec_driver_sql("PRAGMA table_info(receipts)")
            assert "sampling_class" not in {column.name for column in columns}
            await connection.run_sync(migrate)
            found = await connection.execute(text("SELECT sampling_class FROM receipts"))
            assert found.scalars().all() == ["temperature=0.8 top_p=0.9"]
        await database.dispose()
