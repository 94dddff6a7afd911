"""Receipts leave as files, come back the same, and can be signed; what was changed is found."""

from __future__ import annotations

import gzip
import json
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sample_receipts import receipt, request, token

from llm_backend.cli import main
from llm_backend.config import load_settings
from llm_backend.exchange import LONGEST_LINE, SHOWN_REFUSALS, import_receipts, read_lines
from llm_backend.receipt import Receipt, Status, TokenRecord
from llm_backend.store import Store

Encore = Callable[..., tuple[int, str, str]]

AWKWARD = "CRLF\r\n U+2028\u2028 nul\x00 𠮷×2 <script> 👩‍🔬"
GIVEN = [
    receipt(asked=request(question=AWKWARD, seed=2**63 - 1), text=AWKWARD),
    receipt([TokenRecord(7, None, b"\xf0\x9f"), token(8, -1e-7, top={8: -1e-7, 9: None})]),
    receipt([7], status=Status.STOPPED, asked=request(seed=None, temperature=0.8)),
]


@pytest.fixture
def encore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Encore:
    monkeypatch.setenv("ENCORE_RUN_DIR", str(tmp_path))

    def call(*argv: object, data: str = "data") -> tuple[int, str, str]:
        monkeypatch.setenv("ENCORE_DATA_DIR", str(tmp_path / data))
        code: object = 0
        try:
            main([str(word) for word in argv])
        except SystemExit as exit_:
            code = exit_.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(str(code or 0)), captured.out, captured.err

    return call


@pytest.fixture
def exported(encore: Encore, tmp_path: Path) -> Path:
    """A file with `GIVEN`, exported from a store in which each has one run."""
    lines = tmp_path / "given.jsonl"
    lines.write_text("".join(one.to_json() + "\n" for one in GIVEN), encoding="utf-8")
    assert encore("import", lines)[0] == 0
    file = tmp_path / "收据 all.jsonl"
    assert encore("export", "--all", file)[0] == 0
    return file


def contents(file: Path) -> list[str]:
    """What the digests cover of each line, as text."""
    documents = [json.loads(line) for line in file.read_bytes().splitlines()]
    return [json.dumps([one["digest"], one["receipt"]], sort_keys=True) for one in documents]


def test_the_round_trip_loses_nothing_and_counts(encore: Encore, exported: Path, tmp_path: Path) -> None:
    """RC-48: ids, seed digits, bytes, unknown values, CRLF, U+2028; the same file twice adds nothing."""
    code, out, _ = encore("import", exported, data="elsewhere")
    assert (code, out) == (0, "3 receipts imported, 0 known already, 0 lines refused.\n")
    code, out, _ = encore("import", exported, data="elsewhere")
    assert (code, out) == (0, "0 receipts imported, 3 known already, 0 lines refused.\n")
    again = tmp_path / "again.jsonl.gz"
    assert encore("export", "--all", again, data="elsewhere")[0] == 0
    unpacked = tmp_path / "again.jsonl"
    unpacked.write_bytes(gzip.decompress(again.read_bytes()))
    assert contents(unpacked) == contents(exported)
    assert [line["digest"] for line in map(json.loads, exported.read_bytes().splitlines())] == [
        one.digest for one in GIVEN
    ]
    runs = json.loads(encore("list", "--format", "json", data="elsewhere")[1])
    assert {run["kind"] for run in runs} == {"import"}


def test_runs_stand_beside_the_receipt_without_chat_or_address(exported: Path) -> None:
    """What is private or unproved about a run does not leave with its receipt's digest."""
    (run,) = json.loads(exported.read_bytes().splitlines()[0])["runs"]
    assert sorted(run) == ["duration_s", "kind", "neighbours", "started_at", "ttft_s"]


def test_compressed_files_are_equal_for_equal_receipts(
    encore: Encore, exported: Path, tmp_path: Path
) -> None:
    """No time or file name inside: two people who export the same get the same bytes."""
    first, second = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    encore("export", "--all", first)
    encore("export", "--all", second)
    assert first.read_bytes() == second.read_bytes()
    assert encore("import", first, data="fresh")[0] == 0


def test_export_chooses_by_digest_chat_and_day(encore: Encore, exported: Path, tmp_path: Path) -> None:
    a, b = GIVEN[0].digest, GIVEN[1].digest
    assert encore("export", b, a[:20], b, tmp_path / "two.jsonl")[0] == 0
    assert [json.loads(line)["digest"] for line in (tmp_path / "two.jsonl").read_bytes().splitlines()] == [
        b,
        a,
    ]
    today = datetime.now(UTC).date()
    assert encore("export", "--day", today, "--chat", "", tmp_path / "today.jsonl")[0] == 0
    assert contents(tmp_path / "today.jsonl") == contents(exported)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--day", "1999-01-01"), "no receipt to export"),
        (("--chat", "nowhere"), "no receipt to export"),
        (("--day", "yesterday"), "'yesterday' is not a day"),
        ((), "Which receipts?"),
        (("--all", "sha256:abcd"), "Which receipts?"),
        (("deadbeef",), "No receipt starts with deadbeef"),
        (("--all", "--sign", "absent.pem"), "absent.pem cannot be read"),
    ],
)
def test_an_export_that_cannot_be_leaves_no_file(
    encore: Encore, exported: Path, tmp_path: Path, argv: tuple[str, ...], words: str
) -> None:
    output = tmp_path / "new.jsonl"
    code, _, err = encore("export", *argv, output)
    assert code == 2
    assert words in err
    assert not output.exists()


def test_a_broken_line_is_named_and_costs_no_other(encore: Encore, exported: Path, tmp_path: Path) -> None:
    """RC-48: a trailing comma in one line; the others are imported, the fault has file, line and field."""
    first, second, third = exported.read_bytes().splitlines()
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"\n".join([first, second[:-1] + b",}", b"", third.replace(b'"id":7', b'"id":"7"')]))
    code, out, _ = encore("import", bad, data="fresh")
    assert code == 2
    title, comma, field = out.splitlines()
    assert title == "1 receipt imported, 0 known already, 2 lines refused."
    assert f"{bad}, line 2: " in comma
    assert "trailing comma at column" in comma
    assert f"{bad}, line 4: " in field
    assert "receipt.completion.tokens.0.id: Input should be a valid integer" in field


def test_a_csv_that_is_called_json_is_refused_line_by_line_but_not_for_ever(
    encore: Encore, tmp_path: Path
) -> None:
    """RC-48: nothing is imported and that is not called success."""
    csv = tmp_path / "runs.json"
    csv.write_text("digest,text\n" * 50)
    code, out, _ = encore("import", csv)
    assert code == 2
    assert out.startswith("0 receipts imported, 0 known already, 50 lines refused.")
    assert out.count(", line ") == SHOWN_REFUSALS
    assert out.endswith("and 30 more.\n")


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"")])
def test_an_empty_file_is_no_success(encore: Encore, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_bytes(content)
    code, _, err = encore("import", file)
    assert code == 2
    assert "is empty" in err


def test_a_cut_off_archive_keeps_what_came_whole(encore: Encore, exported: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl.gz"
    file.write_bytes(gzip.compress(exported.read_bytes())[:-20])
    code, out, _ = encore("import", file, "--format", "json", data="fresh")
    assert code == 2
    report = json.loads(out)
    assert report["refused"] == 1
    assert "damaged from here on" in report["refusals"][0]["problem"]


def test_receipts_of_another_format_are_named(encore: Encore, exported: Path, tmp_path: Path) -> None:
    """RC-48: a file from a newer Encore says so, instead of failing on some field."""
    newer = tmp_path / "newer.jsonl"
    newer.write_bytes(exported.read_bytes().replace(b'"format":1', b'"format":2'))
    code, out, _ = encore("import", newer, data="fresh")
    assert code == 2
    assert "This receipt has format 2; this Encore reads format 1." in out


def test_a_file_of_several_receipts_is_not_one_receipt(encore: Encore, exported: Path) -> None:
    code, _, err = encore("show", exported)
    assert code == 2
    assert "holds more than one receipt. Import it" in err


def test_one_compressed_or_reformatted_receipt_is_one_receipt(
    encore: Encore, exported: Path, tmp_path: Path
) -> None:
    line = exported.read_bytes().splitlines()[0]
    packed, pretty = tmp_path / "one.json.gz", tmp_path / "pretty.json"
    packed.write_bytes(gzip.compress(line))
    pretty.write_text(json.dumps(json.loads(line), indent=2))
    for file in (packed, pretty):
        code, out, _ = encore("show", file, "--format", "json")
        assert (code, json.loads(out)["digest"]) == (0, GIVEN[0].digest)


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    """A file that is one endless line must not be read whole; the lines after it still count."""
    file = tmp_path / "long.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        for _ in range(3):
            out.write(b" " * (LONGEST_LINE // 2))
        out.write(b"\n" + GIVEN[0].to_json().encode() + b"\n")
    (first, refusal), (second, read) = read_lines(file)
    assert (first, second) == (1, 2)
    assert "longer than 64 MiB" in str(refusal)
    assert isinstance(getattr(read, "receipt", None), Receipt)


async def test_memory_does_not_grow_with_the_file(store: Store, tmp_path: Path) -> None:
    """RC-48: a 200 MB file. Ten times the lines take the same memory (benchmarks/ imports the 200 MB)."""

    async def peak(lines: int) -> int:
        file = tmp_path / f"{lines}.jsonl"
        with file.open("w", encoding="utf-8") as out:
            for seed in range(lines):
                many = [token(7, top={id: -0.5 for id in range(20)})] * 20
                out.write(receipt(many, asked=request(seed=seed)).to_json() + "\n")
        tracemalloc.start()
        try:
            result = await import_receipts(store, [file])
            assert result.imported + result.known == lines
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    await peak(3)  # what is built once and kept
    small, large = await peak(10), await peak(100)
    size = (tmp_path / "100.jsonl").stat().st_size
    assert size > 1_000_000
    assert large - small < size / 4


class TestSignatures:
    @pytest.fixture
    def keys(self, encore: Encore, tmp_path: Path) -> Path:
        key = tmp_path / "key.pem"
        assert encore("keygen", key)[0] == 0
        return key

    def verify(self, encore: Encore, file: Path, key: Path) -> tuple[int, str]:
        code, out, err = encore("verify-signature", file, "--key", f"{key}.pub")
        return code, out + err

    def test_a_signed_export_is_verified(
        self, encore: Encore, exported: Path, keys: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "signed.jsonl.gz"
        assert encore("export", "--all", file, "--sign", keys)[0] == 0
        code, said = self.verify(encore, file, keys)
        assert code == 0
        assert said.startswith("Verified: 3 of 3 signed by ")
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600

    def test_openssl_keys_and_an_outside_reader_agree(
        self, encore: Encore, exported: Path, tmp_path: Path
    ) -> None:
        """The envelope is DSSE as the specification says, not only as this code reads it."""
        key = tmp_path / "openssl.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", f"{key}.pub"], check=True)
        assert encore("sign", exported, "--key", key)[0] == 0
        assert self.verify(encore, exported, key)[0] == 0
        checked = subprocess.run(
            [sys.executable, "-c", OUTSIDE_READER, f"{exported}.dsse.json", f"{key}.pub"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert checked.stdout.split() == [one.digest.removeprefix("sha256:") for one in GIVEN]

    def test_another_key_another_file_or_other_runs_are_found(
        self, encore: Encore, exported: Path, keys: Path, tmp_path: Path
    ) -> None:
        assert encore("sign", exported, "--key", keys)[0] == 0
        other = tmp_path / "other.pem"
        encore("keygen", other)
        code, said = self.verify(encore, exported, other)
        assert (code, "another key" in said) == (1, True)
        whole = exported.read_bytes()
        lines = whole.splitlines(keepends=True)
        exported.write_bytes(lines[0] + lines[1])
        code, said = self.verify(encore, exported, keys)
        assert (code, "lacks 1 receipt of the signed" in said) == (1, True)
        exported.write_bytes(whole + receipt([1, 2]).to_json().encode())
        code, said = self.verify(encore, exported, keys)
        assert (code, "holds 1 receipt not among" in said) == (1, True)
        document = json.loads(lines[0])
        bare = {name: document[name] for name in ("digest", "receipt")}
        exported.write_bytes(json.dumps(bare).encode() + b"\n" + lines[1] + lines[2])
        assert self.verify(encore, exported, keys)[0] == 1, "the times were signed too"
        exported.write_bytes(b"".join(reversed(lines)))
        assert self.verify(encore, exported, keys)[0] == 0, "the order of the lines is not content"

    def test_nothing_is_overwritten_or_signed_half(
        self, encore: Encore, exported: Path, keys: Path, tmp_path: Path
    ) -> None:
        assert encore("keygen", keys)[0] == 2
        assert encore("sign", exported, "--key", keys)[0] == 0
        code, _, err = encore("sign", exported, "--key", keys)
        assert (code, "exists already" in err) == (2, True)
        broken = tmp_path / "broken.jsonl"
        broken.write_bytes(exported.read_bytes() + b"{}\n")
        code, _, err = encore("sign", broken, "--key", keys)
        assert (code, "broken.jsonl, line 4: " in err) == (2, True)
        assert not Path(f"{broken}.dsse.json").exists()
        code, _, err = encore("sign", exported, "--key", f"{keys}.pub", "--signature", tmp_path / "x")
        assert (code, "not an unencrypted Ed25519 private key" in err) == (2, True)


# pyca/cryptography and the DSSE specification's own words, nothing of ours.
OUTSIDE_READER = """
import base64, json, sys
from cryptography.hazmat.primitives.serialization import load_pem_public_key
envelope = json.load(open(sys.argv[1]))
payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
key = load_pem_public_key(open(sys.argv[2], "rb").read())
key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)
print(*(subject["digest"]["sha256"] for subject in json.loads(payload)["subject"]))
"""


def test_settings_are_those_of_the_test(encore: Encore, tmp_path: Path) -> None:
    """The imports above must never reach a developer's own store."""
    encore("list")
    assert str(tmp_path) in load_settings().database()
