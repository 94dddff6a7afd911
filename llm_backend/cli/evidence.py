"""Receipts as files: export, import, sign, verify a signature."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from llm_backend.access import open_store, receipt_file
from llm_backend.cli.base import (
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Format,
    FormatOption,
    app,
    progress,
    rendered,
    run_async,
    say,
)
from llm_backend.config import load_settings
from llm_backend.errors import EncoreError, SignatureInvalid
from llm_backend.evidence_phrases import import_json, import_markdown, import_text
from llm_backend.exchange import Imported, check_signed, export_receipts, import_receipts, new_file, signable
from llm_backend.signature import key_id, new_key, private_key, public_key, sign, verify
from llm_backend.store import Store

ENVELOPE_SUFFIX = ".dsse.json"

SigningKey = Annotated[Path, typer.Option("--key", help="Ed25519 private key, PEM.")]
EnvelopeOption = Annotated[
    Path | None, typer.Option("--signature", help=f"The envelope; FILE{ENVELOPE_SUFFIX} unless given.")
]


@app.command()
def export(
    *,
    receipts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECEIPT]...", help="Digests or their first digits, or receipt files."),
    ] = None,
    output: Annotated[Path, typer.Argument(help="File to write (.gz compresses); never overwritten.")],
    all: Annotated[bool, typer.Option("--all", help="Every stored receipt.")] = False,
    chat: Annotated[str | None, typer.Option(metavar="ID", help="The receipts of one chat.")] = None,
    day: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Those of one day (UTC).")] = None,
    sign_with: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help=f"Also sign, to OUTPUT{ENVELOPE_SUFFIX}.")
    ] = None,
) -> None:
    """Write receipts to a file, one per line, with their runs' times beside them."""
    names = receipts or []
    if bool(names) == (all or chat is not None or day is not None):
        raise EncoreError(
            "Which receipts?", "Name them by digest, or choose with --chat, --day or --all, not both."
        )
    on = _day(day) if day is not None else None
    key = private_key(_read(sign_with)) if sign_with else None
    if key and _envelope_of(output).exists():
        raise EncoreError(f"{_envelope_of(output)} exists already.", "Choose another name.")

    async def work() -> int:
        async with open_store(load_settings()) as store:
            return await export_receipts(_documents(store, names, chat, on), output)

    count = run_async(work())
    say(f"{count:,} {'receipt' if count == 1 else 'receipts'} → {output}")
    if key:
        _write(_envelope_of(output), sign(key, signable(output)))


async def _documents(
    store: Store, names: list[str], chat: str | None, day: date | None
) -> AsyncIterator[str]:
    """Each receipt once, in the order asked for; a file's receipt is written without runs."""
    seen = set()
    for name in names:
        given = receipt_file(name)
        digest = given.digest if given else (await store.run_by_digest_prefix(name)).digest
        assert digest is not None
        if digest not in seen:
            seen.add(digest)
            yield given.to_json() if given else await store.export_line(digest)
    if not names:
        for digest in await store.digests(chat_id=chat, day=day):
            yield await store.export_line(digest)


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What encore export wrote.")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Store the receipts of files. Sound lines are kept, others named; exit code 2 if any was refused."""

    async def work() -> Imported:
        async with open_store(load_settings()) as store:
            with progress.status("importing") as status:
                return await import_receipts(
                    store, files, on_line=lambda file, line: status.update(f"{file}: line {line:,}")
                )

    result = run_async(work())
    report = {Format.TEXT: import_text, Format.JSON: import_json, Format.MARKDOWN: import_markdown}
    print(rendered(report, format, result))
    sys.exit(UNDECIDED if result.refused else REPRODUCED)


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(help="Private key to write; the public one is FILE.pub.")],
) -> None:
    """Make an Ed25519 key pair for signing receipts."""
    private, public = new_key()
    public_file = file.with_name(file.name + ".pub")
    if public_file.exists():
        raise EncoreError(f"{public_file} exists already.", "Choose another name.")
    _write(file, private, mode=0o600)
    _write(public_file, public)
    say(f"key {key_id(public_key(public))[:12]}: keep {file} to yourself, hand out {public_file}")


@app.command("sign")
def sign_file(
    file: Annotated[Path, typer.Argument(help="What encore export wrote.")],
    key: SigningKey,
    signature: EnvelopeOption = None,
) -> None:
    """Sign the receipts of a file: an in-toto statement in a DSSE envelope."""
    secret = private_key(_read(key))
    receipts = signable(file)
    _write(signature or _envelope_of(file), sign(secret, receipts))
    say(f"{len(receipts):,} signed by {key_id(secret.public_key())[:12]}")


@app.command("verify-signature")
def verify_signature(
    file: Annotated[Path, typer.Argument(help="The receipts.")],
    key: Annotated[Path, typer.Option("--key", help="Ed25519 public key, PEM.")],
    signature: EnvelopeOption = None,
) -> None:
    """Check that a key signed exactly the receipts of a file: 0 it did, 1 it did not, 2 undecided."""
    public = public_key(_read(key))
    envelope = _read(signature or _envelope_of(file))
    try:
        count = check_signed(verify(envelope, public), file)
    except SignatureInvalid as error:
        print(f"Not verified. {error.diagnostics()}")
        sys.exit(NOT_REPRODUCED)
    print(f"Verified: {count:,} of {count:,} signed by {key_id(public)}.")


def _envelope_of(file: Path) -> Path:
    return file.with_name(file.name + ENVELOPE_SUFFIX)


def _day(written: str) -> date:
    try:
        return date.fromisoformat(written)
    except ValueError:
        raise EncoreError(f"{written!r} is not a day.", "Write it as 2026-12-01.") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EncoreError(f"{file} cannot be read: {error.strerror}.") from None


def _write(file: Path, content: bytes, mode: int = 0o666) -> None:
    with new_file(file, mode) as opened:
        opened.write(content)
