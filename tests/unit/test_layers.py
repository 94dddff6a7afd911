"""Who may import whom. Read from the source, so that an import inside a function counts too.

surfaces (app, ui, cli) → use cases → engine and store → core → receipt → errors and settings. Nothing
imports a layer above its own; `engine` and `store` never import each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_backend"

FOUNDATION, RECORD, CORE, PARTS, USE_CASES, SURFACES = range(6)

# A module is listed by itself or through its package; what is not listed fails the test below.
LAYERS = {
    "llm_backend": FOUNDATION,
    "llm_backend.errors": FOUNDATION,
    "llm_backend.config": FOUNDATION,
    "llm_backend.strings": FOUNDATION,
    "llm_backend.users": FOUNDATION,
    "llm_backend.receipt": RECORD,
    "llm_backend.answers": CORE,
    "llm_backend.answer_phrases": CORE,
    "llm_backend.arithmetic": CORE,
    "llm_backend.altered": CORE,
    "llm_backend.exported": RECORD,
    "llm_backend.compare": CORE,
    "llm_backend.diagnose": CORE,
    "llm_backend.diff": CORE,
    "llm_backend.distribution_phrases": CORE,
    "llm_backend.distributions": CORE,
    "llm_backend.engine_changes": CORE,
    "llm_backend.fork": CORE,
    "llm_backend.fork_phrases": CORE,
    "llm_backend.inspection": CORE,
    "llm_backend.inspection_phrases": CORE,
    "llm_backend.isolate_phrases": CORE,
    "llm_backend.ladder": CORE,
    "llm_backend.layout": CORE,
    "llm_backend.phrases": CORE,
    "llm_backend.price": CORE,
    "llm_backend.price_phrases": CORE,
    "llm_backend.probe_phrases": CORE,
    "llm_backend.probes": CORE,
    "llm_backend.proof": CORE,
    "llm_backend.proof_phrases": CORE,
    "llm_backend.reasons": CORE,
    "llm_backend.render": CORE,
    "llm_backend.repeat_phrases": CORE,
    "llm_backend.run": CORE,
    "llm_backend.rungs": CORE,
    "llm_backend.sampling": CORE,
    "llm_backend.scoring": CORE,
    "llm_backend.segments": CORE,
    "llm_backend.share_html": CORE,
    "llm_backend.signature": CORE,
    "llm_backend.tally": CORE,
    "llm_backend.thinking": CORE,
    "llm_backend.token_text": CORE,
    "llm_backend.verification": CORE,
    "llm_backend.verify_phrases": CORE,
    "llm_backend.verify_figures": CORE,
    "llm_backend.verify_html": CORE,
    "llm_backend.verify_render": CORE,
    "llm_backend.wall": CORE,
    "llm_backend.wall_phrases": CORE,
    "llm_backend.engine": PARTS,
    "llm_backend.store": PARTS,
    "llm_backend.access": USE_CASES,
    "llm_backend.answer_judge": USE_CASES,
    "llm_backend.answer_worker": PARTS,
    "llm_backend.baseline": USE_CASES,
    "llm_backend.bench": USE_CASES,
    "llm_backend.check": USE_CASES,
    "llm_backend.doctor": USE_CASES,
    "llm_backend.engine_pool": USE_CASES,
    "llm_backend.internals": USE_CASES,
    "llm_backend.isolate": USE_CASES,
    "llm_backend.batch": USE_CASES,
    "llm_backend.batch_phrases": USE_CASES,
    "llm_backend.evidence_phrases": USE_CASES,
    "llm_backend.exchange": USE_CASES,
    "llm_backend.load": USE_CASES,
    "llm_backend.record": USE_CASES,
    "llm_backend.repeat": USE_CASES,
    "llm_backend.replay": USE_CASES,
    "llm_backend.fork_run": USE_CASES,
    "llm_backend.guards": USE_CASES,
    "llm_backend.seed_probe": USE_CASES,
    "llm_backend.share": USE_CASES,
    "llm_backend.start": USE_CASES,
    "llm_backend.suite": USE_CASES,
    "llm_backend.suites": USE_CASES,
    "llm_backend.supervise": USE_CASES,
    "llm_backend.verify_plan": USE_CASES,
    "llm_backend.wall_run": USE_CASES,
    "llm_backend.variant": USE_CASES,
    "llm_backend.cli": SURFACES,
    "llm_backend.__main__": SURFACES,
    "llm_backend.ui": SURFACES,
    "app": SURFACES,
}

# Third-party packages that only some places may know (prefixes of module names).
CONFINED = {
    "chainlit": ("app", "llm_backend.ui"),
    "openai": ("llm_backend.engine.client",),
    "sqlalchemy": ("llm_backend.store",),
    "alembic": ("llm_backend.store",),
    "typer": ("llm_backend.cli",),
    "sympy": ("llm_backend.answer_worker",),
    "math_verify": ("llm_backend.answer_worker",),
    "latex2sympy2_extended": ("llm_backend.answer_worker",),
    "cryptography": ("llm_backend.signature",),
    "securesystemslib": ("llm_backend.signature",),
    "torch": ("llm_backend.engine.probe", "llm_backend.offline"),
    "vllm": ("llm_backend.engine.probe", "llm_backend.offline"),
    "transformers": ("llm_backend.offline",),
    "safetensors": ("llm_backend.offline",),
}

# Run by the engine's interpreter, where the app is not installed.
STANDALONE = ("llm_backend.offline",)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, ast.Module]:
    files = [*PACKAGE.rglob("*.py"), ROOT / "app.py"]
    return {module_name(file): ast.parse(file.read_text(encoding="utf-8")) for file in files if file.exists()}


SOURCES = sources()


def imports(module: str, tree: ast.Module) -> Iterator[str]:
    """Every imported name as far as it can be a module: `from a.b import c` gives `a.b.c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def listed_as(module: str) -> str | None:
    """The longest entry of `LAYERS` that covers a module; the root package covers only itself."""
    while module not in LAYERS and "." in module:
        module = module.rpartition(".")[0]
    return module if module in LAYERS else None


def internal_imports(module: str) -> set[str]:
    """Modules of ours that `module` imports."""
    found = set()
    for name in imports(module, SOURCES[module]):
        known = name if name in SOURCES else name.rpartition(".")[0]
        if known in SOURCES:
            found.add(known)
    return found


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_every_module_has_a_layer(module: str) -> None:
    assert within(module, STANDALONE) or module == "llm_backend" or listed_as(module) != "llm_backend", (
        f"say in LAYERS where {module} belongs"
    )


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if not within(name, STANDALONE)))
def test_imports_go_down(module: str) -> None:
    own = listed_as(module)
    assert own is not None
    for other in internal_imports(module):
        assert not within(other, STANDALONE), f"{module} imports {other}, which the app cannot run"
        target = listed_as(other)
        assert target is not None
        assert LAYERS[target] <= LAYERS[own], f"{module} imports {other} from a layer above"
        if LAYERS[own] == PARTS and LAYERS[target] == PARTS:
            assert target == own, f"{module} imports {other}: engine and store do not know each other"


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_some_packages_are_known_only_in_their_place(module: str) -> None:
    for name in imports(module, SOURCES[module]):
        places = CONFINED.get(name.partition(".")[0])
        assert places is None or within(module, places), f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if within(name, STANDALONE)))
def test_scripts_for_the_engines_interpreter_import_only_each_other(module: str) -> None:
    assert all(within(other, STANDALONE) for other in internal_imports(module))


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if name != "llm_backend.config"))
def test_settings_are_read_only_in_config(module: str) -> None:
    """`os.environ` may be passed on or recorded, but no ENCORE_ variable is looked up elsewhere."""
    for node in ast.walk(SOURCES[module]):
        asked: ast.expr | None = None
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get"), args=[key, *_]
            ):
                asked = key
            case ast.Call(func=ast.Attribute(value=ast.Name("os"), attr="getenv"), args=[key, *_]):
                asked = key
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key, ctx=ast.Load()):
                asked = key
        name = asked.value if isinstance(asked, ast.Constant) else ""
        assert not str(name).startswith("ENCORE_"), f"{module} reads {name}; ask config.Settings"


def test_the_rules_see_what_they_forbid() -> None:
    """A rule that cannot fail proves nothing."""
    tree = ast.parse("def f():\n    import openai.types\n    from llm_backend.store import Store\n")
    found = set(imports("llm_backend.engine.probe", tree))
    assert found == {"openai.types", "llm_backend.store.Store"}
    assert not within("llm_backend.engine.probe", CONFINED["openai"])
    assert listed_as("llm_backend.store.models") == "llm_backend.store"
    assert listed_as("llm_backend.newcomer") == "llm_backend"
    assert within("app", CONFINED["chainlit"])
    assert not within("application", CONFINED["chainlit"])
