"""What every screen is held to: axe-core's rules, nothing cut off, keys instead of a mouse."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")

CHAINLITS_OWN = {
    "nested-interactive": 'button:has(> a[href="#encore-panel"])',
    "aria-valid-attr-value": "[data-panel-resize-handle-id]",
    "list": "[data-sonner-toaster]",
}
"""Serious findings in markup that Encore does not write, as rule and selector: Chainlit draws a header link
as a link inside a button (both do the same), its splitter names panels by ids that they do not have, and its
toasts are items of a list with the role of a status."""

FIND = """async (chainlits) => {
  const found = await axe.run(document, { resultTypes: ['violations'], elementRef: true });
  return found.violations.flatMap((rule) => rule.nodes
    .filter((node) => ['serious', 'critical'].includes(node.impact ?? rule.impact))
    .filter((node) => !(chainlits[rule.id] && node.element.matches(chainlits[rule.id])))
    .map((node) => `${rule.id} (${node.impact}) at ${node.target}: ${node.failureSummary}`));
}"""

CUT_OFF = """(roots) => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth + 1) {
    found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  }
  const scrolls = (element, style) => /auto|scroll/.test(style.overflowX);
  for (const root of document.querySelectorAll(roots)) {
    for (const element of [root, ...root.querySelectorAll('*')]) {
      const style = getComputedStyle(element);
      const box = element.getBoundingClientRect();
      if (!box.width || box.width <= 1 || style.display === 'inline') continue;
      if (element.closest('.katex, .sr-only, svg')) continue;
      const name = `${element.tagName}.${element.className} "${element.textContent.slice(0, 60)}"`;
      if (element.scrollWidth > element.clientWidth + 1 && !scrolls(element, style)) {
        found.push(`${element.scrollWidth} in ${element.clientWidth} px: ${name}`);
      }
      let inside = element;
      while (inside && !scrolls(inside, getComputedStyle(inside))) inside = inside.parentElement;
      if (!inside && (box.right > innerWidth + 1 || box.left < -1)) found.push(`beyond the edge: ${name}`);
    }
  }
  return found;
}"""

OURS = (
    '#encore-status, .encore-run-line, .encore-panel, #header a[href="#encore-panel"], #welcome-screen, '
    "#header > div:last-child, .step[data-step-type=assistant_message] div:has(> button)"
)
"""In the chat; other pages are Encore's altogether."""


def serious_findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical, without what is Chainlit's own."""
    page.evaluate(AXE)
    found: list[str] = page.evaluate(FIND, CHAINLITS_OWN)
    return found


def cut_off(page: Page, roots: str = OURS) -> list[str]:
    """Elements whose content is wider than they are, or which stand beyond the window's edge."""
    found: list[str] = page.evaluate(CUT_OFF, roots)
    return found


def tab_to(page: Page, wanted: Locator, *, most: int = 80, back: bool = False) -> None:
    """Press Tab until `wanted` has the focus; the focus must be visible there."""
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            assert wanted.evaluate("element => element.matches(':focus-visible')")
            return
    raise AssertionError(f"{most} presses of Tab never reach {wanted}")
