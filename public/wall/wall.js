// The replay wall: asks for news a few times a second while it runs, adds what is new to the cards, and
// hides and reveals. Whatever a model wrote is set as text, never as markup.
(() => {
  'use strict';

  const { root, wall } = document.body.dataset;
  const words = JSON.parse(document.body.dataset.words);
  const at = (path) => `${root}/walls/${wall}/${path}`;
  const byId = (id) => document.getElementById(id);
  const POLL_MS = 250;
  const RETRY_MS = 2000;
  const SHOWN = 6000; // characters of one answer on screen; more would slow every frame
  const AROUND = 160; // characters kept ahead of a fork

  function make(tag, className, text = '') {
    const element = document.createElement(tag);
    element.className = className;
    element.textContent = text;
    return element;
  }

  // -- what is known --------------------------------------------------------------------------------

  let news = { state: '', cards: [], groups: [] };
  let epoch = '';
  let cards = [];
  const reveal = { on: false, step: 0, answers: 0 };

  const ended = () => news.state === 'ended';
  const steps = () => Math.max(0, ...cards.map((card) => card.ends.length + (card.over ? 1 : 0)));
  // Hidden until all steps, then each answer, were asked for.
  const answerShown = (index) => !reveal.on || reveal.answers > index;
  const sumShown = () => !reveal.on || reveal.answers > cards.length;

  // -- cards ----------------------------------------------------------------------------------------

  function newCard(index) {
    const element = make('article', 'card');
    const card = { index, text: '', pieces: 0, version: -1, ends: [], scanned: 0, from: 0, painted: -1 };
    Object.assign(card, { over: false, fork: null, element, data: {} });
    element.tabIndex = index ? -1 : 0;
    element.dataset.testid = 'card';
    const head = make('header', '');
    card.title = make('h2', 'card-title');
    card.title.id = `card-${index}`;
    element.setAttribute('aria-labelledby', card.title.id);
    card.larger = make('button', 'larger', '⤢');
    card.larger.type = 'button';
    card.larger.tabIndex = -1;
    card.larger.addEventListener('click', () => enlarge(card));
    head.append(card.title, card.larger);
    card.line = make('p', 'card-line');
    card.forked = make('p', 'card-fork');
    card.forked.dataset.testid = 'fork';
    card.body = make('div', 'card-text');
    card.body.dataset.testid = 'text';
    card.body.tabIndex = 0; // it scrolls, so keys must reach it
    card.body.setAttribute('role', 'group');
    card.body.setAttribute('aria-labelledby', card.title.id);
    card.answer = make('p', 'card-answer');
    card.answer.dataset.testid = 'answer';
    card.foot = make('p', 'card-foot');
    element.append(head, card.line, card.forked, card.body, card.answer, card.foot);
    element.addEventListener('focus', () => focusCard(index));
    byId('cards').append(element);
    return card;
  }

  function take(card, data) {
    if (data.at !== card.pieces) return; // an answer to an older question
    card.text += data.text;
    card.pieces = data.pieces;
    card.version = data.version;
    card.data = data;
    card.over = !['waiting', 'running'].includes(data.state);
    const forked = data.fork && !card.fork;
    card.fork = data.fork;
    const paragraph = /\n\s*\n/g;
    paragraph.lastIndex = card.scanned;
    for (let found; (found = paragraph.exec(card.text)); ) {
      if (found.index + found[0].length >= card.text.length) break; // it may go on
      card.ends.push(found.index + found[0].length);
      card.scanned = paragraph.lastIndex;
    }
    paint(card, forked || card.over);
    head(card);
  }

  function head(card) {
    const { data } = card;
    const hidden = reveal.on && !answerShown(card.index);
    card.element.dataset.state = data.state;
    card.element.dataset.forked = Boolean(data.fork);
    card.title.textContent = data.title;
    card.larger.setAttribute('aria-label', `${words.larger}: ${data.title}`);
    const shape = make('span', 'shape', data.shape);
    shape.setAttribute('aria-hidden', 'true');
    card.line.replaceChildren(...(data.shape ? [shape, ' '] : []), data.line);
    // The tokens at the fork are part of what is to be predicted.
    const fork = data.fork && !hidden ? [data.fork.said, data.fork.margin].filter(Boolean).join(' · ') : '';
    card.forked.textContent = fork;
    card.answer.replaceChildren();
    card.answer.hidden = data.state !== 'complete';
    card.answer.dataset.hidden = hidden;
    if (hidden) card.answer.textContent = words['hidden.card'];
    else if (data.answer === null) card.answer.textContent = words.no_answer;
    else card.answer.append(formula(data.answer));
    const receipt = document.createElement('a');
    card.foot.replaceChildren();
    if (data.problem) card.foot.append(make('span', 'problem', data.problem));
    if (data.neighbours) card.foot.append(make('span', '', data.neighbours));
    if (data.digest) {
      receipt.href = `${root}/receipts/${data.digest}`;
      receipt.target = '_blank';
      receipt.textContent = `${words.receipt} ${data.digest.replace('sha256:', '').slice(0, 6)}`;
      card.foot.append(receipt);
    }
  }

  function formula(answer) {
    const shown = make('span', 'value');
    if (window.katex && /[\\^_{]/.test(answer)) {
      try {
        window.katex.render(answer, shown, { throwOnError: true, trust: false, strict: 'ignore' });
        return shown;
      } catch {
        // Not mathematics after all: as it was written.
      }
    }
    shown.textContent = answer;
    return shown;
  }

  // How much of the text may be seen: all of it, or as many steps as were asked for.
  function visible(card) {
    if (!reveal.on) return card.text.length;
    if (reveal.step === 0) return 0;
    const end = card.ends[reveal.step - 1];
    if (end !== undefined) return end;
    return card.over ? card.text.length : (card.ends[card.ends.length - 1] ?? 0);
  }

  function paint(card, anew = false) {
    const limit = visible(card);
    const grown = limit - card.from;
    if (!anew && limit === card.painted) return;
    if (!anew && card.painted >= 0 && limit > card.painted && grown <= SHOWN * 1.5) {
      card.tail.appendData(card.text.slice(card.painted, limit));
    } else {
      repaint(card, limit);
    }
    card.painted = limit;
    card.body.scrollTop = card.body.scrollHeight;
  }

  function repaint(card, limit) {
    const split = card.fork ? Math.min(card.fork.characters, limit) : card.data.first ? 0 : limit;
    let from = Math.max(0, limit - SHOWN);
    if (card.fork) from = Math.max(from, split - AROUND);
    if (isLow(card.text, from)) from += 1;
    card.from = from;
    const nodes = [];
    if (from > 0) nodes.push(make('span', 'fold', words.above.replace('{n}', from.toLocaleString())));
    const same = make('span', 'same', card.text.slice(from, Math.max(from, split)));
    const rest = make('span', 'rest', card.text.slice(Math.max(from, split), limit));
    nodes.push(same);
    if (card.fork && limit > split) nodes.push(make('mark', 'fork', `✕ ${words.fork}`));
    nodes.push(rest);
    card.body.replaceChildren(...nodes);
    card.tail = document.createTextNode('');
    (card.fork || card.data.first ? rest : same).append(card.tail);
    if (card.over && limit === card.text.length && window.renderMathInElement) {
      for (const part of [same, rest]) typeset(part);
      card.painted = -1;
    }
  }

  const isLow = (text, index) => (text.charCodeAt(index) & 0xfc00) === 0xdc00;

  function typeset(element) {
    window.renderMathInElement(element, {
      delimiters: [
        { left: '\\[', right: '\\]', display: false },
        { left: '\\(', right: '\\)', display: false },
        { left: '$$', right: '$$', display: false }
      ],
      throwOnError: false,
      trust: false,
      strict: 'ignore'
    });
  }

  function bars() {
    const list = byId('bars');
    const most = Math.max(1, ...news.groups.map((group) => group.cards.length));
    const shown = sumShown();
    const key = JSON.stringify([news.groups, shown]);
    if (list.dataset.key === key) return;
    list.dataset.key = key;
    byId('expected').textContent = shown ? (news.expected ?? '') : '';
    if (!shown || !news.groups.length) {
      const said = shown ? words['histogram.none'] : words.hidden;
      list.replaceChildren(make('li', 'none', said));
      return;
    }
    list.replaceChildren(
      ...news.groups.map((group) => {
        const row = make('li', 'bar-row');
        const name = make('span', 'bar-name');
        if (group.answer === null) name.append(group.short);
        else name.append(group.answer.length > 40 ? group.short : formula(group.answer));
        if (group.mark) {
          const mark = make('span', 'bar-mark', group.mark);
          mark.title = group.judged;
          mark.setAttribute('role', 'img');
          mark.setAttribute('aria-label', group.judged);
          name.append(' ', mark);
        }
        const track = make('span', 'bar-track');
        const bar = make('span', 'bar');
        bar.style.width = `${(100 * group.cards.length) / most}%`;
        track.append(bar);
        row.append(name, track, make('span', 'bar-count', `${group.cards.length} ×`));
        if (group.unsure) row.append(make('span', 'bar-unsure', group.unsure));
        return row;
      })
    );
  }

  function summary() {
    byId('setup').hidden = news.state !== 'setup';
    byId('wall').hidden = news.state === 'setup' || !news.state;
    byId('stop').hidden = news.state !== 'running';
    byId('again').hidden = !ended();
    const started = cards.some((card) => card.data.state !== 'waiting');
    const said = sumShown() ? news.sentence || words.working : words.hidden;
    setText('sentence', started || ended() ? said : words.starting);
    setText('tokens', sumShown() ? news.tokens : '');
    setText('load', news.load);
    setText('problem', news.problem);
    byId('predict').setAttribute('aria-pressed', String(reveal.on));
    byId('reveal').disabled = !reveal.on || sumShown();
    byId('answers').disabled = byId('reveal').disabled;
    bars();
  }

  function setText(id, text) {
    // Setting equal text would make screen readers read it again.
    if (byId(id).textContent !== text) byId(id).textContent = text;
  }

  // -- revealing ------------------------------------------------------------------------------------

  function show() {
    for (const card of cards) {
      paint(card, true);
      head(card);
    }
    summary();
  }

  // Step by step, then the answers one by one, then the sentence that sums up.
  function revealNext(toAnswers = false) {
    if (!reveal.on) {
      say(words.nothing_hidden);
      return;
    }
    const stepsLeft = reveal.step < steps();
    if (stepsLeft) reveal.step = toAnswers ? steps() : reveal.step + 1;
    if ((toAnswers || !stepsLeft) && ended() && !sumShown()) reveal.answers += 1;
    show();
  }

  function hideLast() {
    if (!reveal.on) return;
    if (reveal.answers) reveal.answers -= 1;
    else if (reveal.step) reveal.step -= 1;
    show();
  }

  function predict(on) {
    Object.assign(reveal, { on, step: 0, answers: 0 });
    say('');
    show();
  }

  const say = (text) => setText('said', text);

  // -- moving ---------------------------------------------------------------------------------------

  let current = 0;

  function focusCard(index) {
    current = index;
    for (const card of cards) card.element.tabIndex = card.index === index ? 0 : -1;
  }

  function columns() {
    const top = cards[0]?.element.offsetTop;
    return Math.max(1, cards.filter((card) => card.element.offsetTop === top).length);
  }

  function move(by) {
    if (!cards.length) return;
    const large = document.querySelector('.card.large');
    const focused = cards.some((card) => card.element === document.activeElement);
    const index = focused ? Math.min(cards.length - 1, Math.max(0, current + by)) : current;
    if (large) enlarge(cards[index]);
    cards[index].element.focus();
  }

  function enlarge(card) {
    const large = document.querySelector('.card.large');
    large?.classList.remove('large');
    if (card && card.element !== large) {
      card.element.classList.add('large');
      card.element.focus();
    }
    document.body.classList.toggle('has-large', Boolean(document.querySelector('.card.large')));
    for (const one of cards) {
      const isLarge = one.element.classList.contains('large');
      one.larger.textContent = isLarge ? '✕' : '⤢';
      one.larger.setAttribute('aria-label', isLarge ? words.smaller : `${words.larger}: ${one.data.title}`);
    }
  }

  function fullscreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else document.documentElement.requestFullscreen?.().catch(() => {});
  }

  const KEYS = {
    ' ': (event) => (event.shiftKey ? hideLast() : revealNext()),
    Backspace: hideLast,
    a: () => revealNext(true),
    p: () => predict(!reveal.on),
    f: fullscreen,
    ArrowRight: () => move(1),
    ArrowLeft: () => move(-1),
    ArrowDown: () => move(columns()),
    ArrowUp: () => move(-columns()),
    Escape: () => enlarge(null)
  };

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, form')) return;
    const onButton = event.target.closest('button, a');
    const scrolls = event.target.closest('.card-text');
    if (scrolls && scrolls.scrollHeight > scrolls.clientHeight && /^Arrow(Up|Down)$/.test(event.key)) return;
    if (event.key === 'Enter' && !onButton) enlarge(cards[current]);
    const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || byId('wall').hidden || (onButton && event.key === ' ')) return;
    event.preventDefault();
    action(event);
  });

  // -- light and dark -------------------------------------------------------------------------------

  const CHOSEN = 'vite-ui-theme'; // what the chat's own theme button writes
  const dark = () => {
    const chosen = localStorage.getItem(CHOSEN);
    if (chosen === 'dark' || chosen === 'light') return chosen === 'dark';
    return matchMedia('(prefers-color-scheme: dark)').matches;
  };
  const applyTheme = (isDark) => document.documentElement.classList.toggle('dark', isDark);
  applyTheme(dark());

  // -- talking to Encore ----------------------------------------------------------------------------

  async function post(path, body) {
    const response = await fetch(at(path), {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body ?? {})
    });
    const reply = await response.json();
    if (!response.ok) throw new Error(typeof reply.detail === 'string' ? reply.detail : response.statusText);
    return reply;
  }

  let polling = false;

  async function poll() {
    if (polling) return;
    polling = true;
    for (;;) {
      let wait = POLL_MS;
      try {
        const query = new URLSearchParams({
          epoch,
          at: cards.map((card) => card.pieces).join(','),
          seen: cards.map((card) => Math.max(0, card.version)).join(',')
        });
        const response = await fetch(`${at('news')}?${query}`, { cache: 'no-store' });
        const reply = await response.json();
        if (!response.ok) throw new Error(reply.detail);
        receive(reply);
        if (reply.state !== 'running') break;
      } catch (error) {
        setText('problem', error instanceof TypeError ? words.away : error.message);
        wait = RETRY_MS;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
    polling = false;
  }

  function receive(reply) {
    if (reply.epoch !== epoch) {
      epoch = reply.epoch;
      cards = [];
      byId('cards').replaceChildren();
    }
    news = reply;
    while (cards.length < reply.count) cards.push(newCard(cards.length));
    for (const data of reply.cards) take(cards[data.number], data);
    summary();
  }

  function kindChosen() {
    const seeds = byId('setup').elements.kind.value === 'seeds';
    for (const field of document.querySelectorAll('#setup .seeds')) field.hidden = !seeds;
  }

  byId('setup').addEventListener('change', kindChosen);
  byId('setup').addEventListener('submit', async (event) => {
    event.preventDefault();
    const form = byId('setup').elements;
    const sent = { kind: form.kind.value, count: form.count.value, order: form.order.value };
    Object.assign(sent, { seed: form.seed.value, temperature: form.temperature.value });
    setText('setup-problem', '');
    try {
      await post('start', sent);
      if (form.predict.checked) predict(true);
      await poll();
    } catch (error) {
      setText('setup-problem', error instanceof TypeError ? words.away : error.message);
    }
  });
  byId('stop').addEventListener('click', () => post('stop').catch(() => {}));
  byId('again').addEventListener('click', async () => {
    try {
      location.assign(`${root}/walls/${(await post('again')).wall}`);
    } catch (error) {
      setText('problem', error.message);
    }
  });
  byId('theme').addEventListener('click', () => {
    const isDark = !document.documentElement.classList.contains('dark');
    localStorage.setItem(CHOSEN, isDark ? 'dark' : 'light');
    applyTheme(isDark);
  });
  byId('fullscreen').addEventListener('click', fullscreen);
  byId('predict').addEventListener('click', () => predict(!reveal.on));
  byId('reveal').addEventListener('click', () => revealNext());
  byId('answers').addEventListener('click', () => revealNext(true));
  kindChosen();
  poll();
})();
