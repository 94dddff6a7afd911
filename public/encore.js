// What the page does around Chainlit's own application: opens the panel where there is room for it,
// says what the engine is doing, and names the buttons Chainlit leaves nameless.
(() => {
  'use strict';

  // Chainlit would begin dark; begin with what the system asks for. (This runs before it starts.)
  const THEME = 'vite-ui-theme';
  if (!localStorage.getItem(THEME)) localStorage.setItem(THEME, 'system');

  const WIDE = 1024; // pixels; below, the panel would cover the chat
  const CLOSED = 'encore-panel-closed';
  const POLL_MS = { ready: 10_000, other: 1_500 };

  // Chainlit forwards window messages to `on_window_message`.
  const openPanel = () => window.postMessage('encore:open', window.location.origin);

  window.addEventListener('message', (event) => {
    const ready = event.source === window && event.data?.type === 'encore:ready';
    if (ready && window.innerWidth >= WIDE && !sessionStorage.getItem(CLOSED)) openPanel();
  });

  document.addEventListener(
    'click',
    (event) => {
      const link = event.target.closest('a[href="#encore-panel"], button:has(a[href="#encore-panel"])');
      if (link) {
        event.preventDefault();
        sessionStorage.removeItem(CLOSED);
        openPanel();
      } else if (event.target.closest('#side-view-title button')) {
        sessionStorage.setItem(CLOSED, 'yes'); // closing sticks, in new chats too
      }
    },
    true
  );

  // -- the engine's state -----------------------------------------------------------------------------

  const status = document.createElement('div');
  status.id = 'encore-status';
  status.setAttribute('role', 'status');

  // Below a proxy's prefix the page's own address may be anything: ask where the application begins.
  const root = document.querySelector('meta[property="og:root_path"]')?.content ?? '';

  function part(id, build) {
    let element = document.getElementById(id);
    if (build === null) {
      element?.remove();
      return;
    }
    if (!element) {
      element = document.createElement('div');
      element.id = id;
      element.dataset.testid = id;
      status.append(element);
    }
    const nodes = build(element);
    // Replacing equal text would make screen readers read it again every second.
    const text = nodes.map((node) => (typeof node === 'string' ? node : node.textContent)).join('\n');
    if (element.dataset.text === text) return;
    element.dataset.text = text;
    element.replaceChildren(...nodes);
  }

  function show(state) {
    part(
      'encore-engine',
      state.engine === 'ready'
        ? null
        : (element) => {
            element.dataset.kind = state.engine;
            const line = document.createElement('code');
            line.textContent = state.last_line;
            return state.last_line ? [state.sentence, line] : [state.sentence];
          }
    );
    part(
      'encore-note',
      state.note
        ? () => {
            const link = document.createElement('a');
            link.href = state.note_href;
            link.textContent = state.note_link;
            link.target = '_blank';
            link.rel = 'noreferrer';
            return [`${state.note} `, link];
          }
        : null
    );
  }

  // Where the header has no room for it, the conversation begins below it instead of under it.
  function makeRoom() {
    const below = status.childElementCount ? Math.ceil(status.getBoundingClientRect().bottom) : 0;
    document.documentElement.style.setProperty('--encore-status-bottom', `${below}px`);
  }

  async function poll() {
    let wait = POLL_MS.other;
    try {
      const response = await fetch(`${root}/status`);
      const state = await response.json();
      show(state);
      if (state.engine === 'ready') wait = POLL_MS.ready;
    } catch {
      // The application itself is away: Chainlit says so, and the next poll finds it again.
    }
    setTimeout(poll, document.hidden ? POLL_MS.ready : wait);
  }

  // -- names for nameless buttons ---------------------------------------------------------------------

  const chinese = navigator.language.toLowerCase().startsWith('zh');
  const NAMES = {
    '#new-chat-button': ['New chat', '新对话'],
    '#chat-submit': ['Send', '发送'],
    '#stop-button': ['Stop', '停止'],
    '#theme-toggle': ['Theme', '主题'],
    '#side-view-title button': ['Close panel', '关闭面板'],
    '#chat-settings-open-modal': ['Settings', '设置'],
    '#chat-input': ['Question', '问题'],
    '#password ~ button': ['Show or hide the password', '显示或隐藏密码'],
    '[role=dialog]:has(.encore-panel)': ['Reproducibility', '可复现性'],
    'button:has(> svg.lucide-copy)': ['Copy', '复制'],
    'button:has(> svg.lucide-layers)': ['×10: replay ten times', '×10：重放十次']
  };

  const given = new WeakMap(); // the names that are ours to change

  function nameButtons() {
    for (const [selector, names] of Object.entries(NAMES)) {
      const name = names[chinese ? 1 : 0];
      for (const button of document.querySelectorAll(selector)) {
        const has = button.getAttribute('aria-label');
        // Send and Stop are one element for React, and would keep the first one's name.
        if (has === name || (has && has !== given.get(button))) continue;
        button.setAttribute('aria-label', name);
        given.set(button, name);
      }
    }
  }

  function start() {
    document.documentElement.lang = chinese ? 'zh-CN' : 'en';
    document.body.append(status);
    new ResizeObserver(makeRoom).observe(status);
    window.addEventListener('resize', makeRoom);
    new MutationObserver(nameButtons).observe(document.body, { childList: true, subtree: true });
    poll();
  }

  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
  else start();
})();
