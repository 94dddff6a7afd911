"""Opens what a surface works with, from `Settings`: the engine, the store, receipts by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from llm_backend.check import Calibrations
from llm_backend.config import Settings
from llm_backend.engine.client import EngineClient
from llm_backend.engine_pool import EnginePool
from llm_backend.errors import ReceiptInvalid
from llm_backend.receipt import Receipt, parse_receipt
from llm_backend.store import Run, Store


def open_engine(settings: Settings, url: str | None = None) -> EngineClient:
    """The engine at `url`, or the configured one; close it, or use it in `async with`."""
    key = settings.api_key.get_secret_value() if settings.api_key else None
    address = (url or settings.urls()[0]).rstrip("/").removesuffix("/v1")
    return EngineClient(
        address,
        api_key=key,
        manifest_file=settings.manifest_file,
        assigned_manifest=settings.assigned_manifest(address),
        stall_timeout=settings.stall_timeout,
    )


def open_engines(settings: Settings) -> EnginePool:
    """All configured engines; use it in `async with`."""
    return EnginePool([open_engine(settings, url) for url in settings.urls()])


def open_calibrations(settings: Settings) -> Calibrations:
    """The tolerances measured so far, by the chat and the command line alike."""
    return Calibrations(settings.data_dir / "calibrations.json")


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """The configured store, closed at the end. Raises `StoreError`."""
    store = await Store.open(settings.database())
    try:
        yield store
    finally:
        await store.close()


def receipt_file(name: str) -> Receipt | None:
    """The receipt in the file called `name`, None if there is no such file."""
    path = Path(name)
    if not path.is_file():
        return None
    try:
        return parse_receipt(path.read_bytes())
    except OSError as error:
        raise ReceiptInvalid(f"{path} cannot be read: {error.strerror}.") from None


async def find_run(store: Store, name: str) -> Run:
    """The run a digest prefix or a receipt file names; a file not seen before is imported."""
    imported = receipt_file(name)
    return await store.add_receipt(imported) if imported else await store.run_by_digest_prefix(name)


async def find_receipt(settings: Settings, name: str) -> Receipt:
    """The receipt a digest prefix or a file names; the store is opened only for a digest."""
    if (recorded := receipt_file(name)) is not None:
        return recorded
    async with open_store(settings) as store:
        return await store.receipt_of((await store.run_by_digest_prefix(name)).id)
