// Why this token: the answer token by token, near ties marked, what else could have stood at one of them,
// and forks: another token taken, and the model going on from there. Nothing is asked of the server until
// someone opens the section; a page holds a few hundred tokens whatever the answer's length.

const HEATED = ['tie', 'near'];

// The sign of a near tie stands where the token's letters begin, not before its space. A token that is only
// space is drawn where it carries a sign, and where it ends a line.
function FlowText({ text, near }) {
  const blank = text.trim() === '';
  if (blank) return near ? `≈${visible(text)}` : text.includes('\n') ? visible(text) : text;
  const letters = text.search(/\S/);
  return (
    <>
      {text.slice(0, letters)}
      {near ? <span className="encore-near-mark">≈</span> : null}
      {text.slice(letters)}
    </>
  );
}

function FlowToken({ t, token, active, picked, onPick, onMove }) {
  const heat = token.heat ? t(`tokens.heat.${token.heat}`) : '';
  const said = [visible(token.text), percent(token.probability) ?? t('diff.unknown'), heat];
  return (
    <>
      <span
        className={`encore-token encore-heat-${token.heat || 'none'}`}
        data-testid="flow-token"
        data-position={token.position}
        data-heat={token.heat}
        role="button"
        aria-pressed={picked}
        aria-label={said.filter(Boolean).join(', ')}
        title={heat || undefined}
        tabIndex={active ? 0 : -1}
        onClick={() => onPick(token.position)}
        onKeyDown={(event) => onMove(event, token.position)}
      >
        <FlowText text={token.text} near={HEATED.includes(token.heat)} />
      </span>
      {token.text.endsWith('\n') ? <br /> : null}
    </>
  );
}

// The position that a key moves to from `position`, or null where it moves nowhere.
function keyTarget(key, position, tokens) {
  const first = tokens[0].position;
  const last = tokens[tokens.length - 1].position;
  const ties = tokens.filter((token) => HEATED.includes(token.heat)).map((token) => token.position);
  switch (key) {
    case 'ArrowRight':
      return Math.min(last, position + 1);
    case 'ArrowLeft':
      return Math.max(first, position - 1);
    case 'ArrowDown':
      return ties.find((tie) => tie > position) ?? position;
    case 'ArrowUp':
      return [...ties].reverse().find((tie) => tie < position) ?? position;
    case 'Home':
      return first;
    case 'End':
      return last;
    default:
      return null;
  }
}

function TokenFlow({ t, page, picked, onPick }) {
  const [active, setActive] = useState(page.tokens[0].position);
  const flow = useRef(null);
  const move = (event, position) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      onPick(position);
      return;
    }
    const target = keyTarget(event.key, position, page.tokens);
    if (target === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    setActive(target);
    flow.current.querySelector(`[data-position="${target}"]`).focus();
  };
  const pick = (position) => {
    setActive(position);
    onPick(position);
  };
  return (
    <div className="encore-flow encore-token-flow" role="group" aria-label={t('tokens.flow')} ref={flow}>
      {page.tokens.map((token) => (
        <FlowToken
          key={token.position}
          t={t}
          token={token}
          active={token.position === active}
          picked={token.position === picked}
          onPick={pick}
          onMove={move}
        />
      ))}
    </div>
  );
}

function Alternatives({ t, run, at, busy, onAct }) {
  const { data, problem } = useJson(`/runs/${run.id}/choices?at=${at}`);
  if (problem) return <p role="alert">{t('failed', { problem })}</p>;
  if (!data) return <p className="encore-quiet">{t('loading')}</p>;
  return (
    <div className="encore-alternatives" data-testid="alternatives" role="group" aria-label={t('tokens')}>
      <p role="status" data-testid="alternatives-margin">
        <strong>{t('fork.at', { n: count(data.position) })}</strong> — {data.margin}
      </p>
      <ol className="encore-bars encore-choices">
        {data.choices.map((choice) => (
          <li key={choice.id} className={choice.recorded ? 'encore-own' : ''} data-testid="alternative">
            <span className="encore-bar-name" title={choice.label}>
              {visible(choice.text)}
            </span>
            <span className="encore-bar" aria-hidden="true">
              <span style={{ width: `${(choice.probability ?? 0) * 100}%` }} />
            </span>
            <span className="encore-bar-value">{percent(choice.probability) ?? t('diff.unknown')}</span>
            <span className="encore-choice-act">
              {choice.recorded ? <span className="encore-quiet">{t('tokens.recorded')} </span> : null}
              {choice.ends ? <span className="encore-quiet">{t('tokens.ends')}</span> : null}
              {!choice.ends && !data.refused ? (
                <button
                  type="button"
                  className="encore-button"
                  disabled={busy}
                  aria-label={
                    choice.recorded
                      ? t('tokens.again.about')
                      : t('tokens.take.about', { token: choice.label })
                  }
                  title={choice.recorded ? t('tokens.again.about') : undefined}
                  onClick={() => onAct('fork', { position: data.position, token: choice.id })}
                  data-testid={choice.recorded ? 'take-again' : 'fork-here'}
                >
                  {choice.recorded ? t('tokens.again') : t('tokens.take')}
                </button>
              ) : null}
            </span>
          </li>
        ))}
      </ol>
      {data.refused ? (
        <p className="encore-note" data-testid="alternatives-refused">
          {data.refused}
        </p>
      ) : null}
      {data.note ? <p className="encore-quiet">{data.note}</p> : null}
    </div>
  );
}

function ForkedText({ t, label, shared, text, leftOut, testid }) {
  return (
    <div className="encore-column" data-testid={testid}>
      <span className="encore-label">{label}</span>
      <div className="encore-forked-text" role="group" tabIndex={0} aria-label={label}>
        <span className="encore-quiet">{shared}</span>
        <span className="encore-part-sign" aria-hidden="true">
          ▸
        </span>
        {text || <span className="encore-quiet">{t('fork.end')}</span>}
        {leftOut ? <span className="encore-quiet"> {t('fork.left_out', { n: count(leftOut) })}</span> : null}
      </div>
    </div>
  );
}

function ForkOutcome({ t, fork, here, onChoose }) {
  const { data, problem } = useJson(`/runs/${fork}/fork`);
  if (problem) return <p role="alert">{t('failed', { problem })}</p>;
  if (!data) return <p className="encore-quiet">{t('loading')}</p>;
  const shared = `${data.shared_left_out ? '…' : ''}${data.shared}`;
  return (
    <div className="encore-fork" data-testid="fork-outcome" role="group" aria-label={t('fork')}>
      <div className="encore-fork-title">
        {t('fork.at', { n: count(data.position) })} · {t('fork.recorded')} {data.recorded} ·{' '}
        {data.taken_label} {data.taken}
      </div>
      <p role="status" data-testid="fork-answers">
        <strong>{data.answers}</strong>
      </p>
      <ul className="encore-sentences" data-testid="fork-sentences">
        {[data.margin, ...data.sentences].map((sentence) => (
          <li key={sentence}>{sentence}</li>
        ))}
      </ul>
      <div className="encore-columns">
        <ForkedText
          t={t}
          label={t('fork.recorded_text')}
          shared={shared}
          text={data.recorded_text}
          leftOut={data.recorded_left_out}
          testid="fork-recorded-text"
        />
        <ForkedText
          t={t}
          label={t('fork.forked_text')}
          shared={shared}
          text={data.forked_text}
          leftOut={data.forked_left_out}
          testid="fork-forked-text"
        />
      </div>
      <button
        type="button"
        className="encore-button"
        onClick={() => onChoose(here === fork ? data.parent : fork)}
        data-testid="fork-other-run"
      >
        {here === fork ? t('fork.parent') : t('fork.open')}
      </button>
    </div>
  );
}

function TokenPages({ t, run, busy, onAct }) {
  const [start, setStart] = useState(0);
  const [picked, setPicked] = useState(null);
  const { data, problem } = useJson(`/runs/${run.id}/tokens?start=${start}`);
  if (problem) return <p role="alert">{t('failed', { problem })}</p>;
  if (!data) return <p className="encore-quiet">{t('loading')}</p>;
  if (!data.tokens.length) return <p className="encore-quiet">{t('tokens.none')}</p>;
  const near = data.tokens.filter((token) => HEATED.includes(token.heat)).length;
  const turn = (to) => {
    setPicked(null);
    setStart(to);
  };
  const last = start + data.tokens.length;
  return (
    <>
      <p className="encore-quiet">{t('tokens.hint')}</p>
      <p data-testid="near-ties">
        {t(near ? (near === 1 ? 'tokens.near.one' : 'tokens.near.many') : 'tokens.near.none', { n: count(near) })}
      </p>
      <TokenFlow key={start} t={t} page={data} picked={picked} onPick={setPicked} />
      <p className="encore-quiet">{t('tokens.legend', { x: nats(data.threshold) })}</p>
      {data.total > data.page ? (
        <div className="encore-row" data-testid="token-pages">
          <button
            type="button"
            className="encore-button"
            disabled={start === 0}
            onClick={() => turn(Math.max(0, start - data.page))}
            data-testid="tokens-earlier"
          >
            {t('tokens.earlier')}
          </button>
          <span>
            {t('tokens.page', { from: count(start), to: count(last - 1), total: count(data.total) })}
          </span>
          <button
            type="button"
            className="encore-button"
            disabled={last >= data.total}
            onClick={() => turn(start + data.page)}
            data-testid="tokens-later"
          >
            {t('tokens.later')}
          </button>
        </div>
      ) : null}
      {picked === null ? null : (
        <Alternatives key={picked} t={t} run={run} at={picked} busy={busy} onAct={onAct} />
      )}
    </>
  );
}

function Tokens({ t, run, progress, said, busy, forked, onAct, onChoose }) {
  const [opened, setOpened] = useState(false);
  return (
    <Section id="tokens" title={t('tokens')}>
      {run.kind === 'fork' && forked ? <ForkOutcome t={t} fork={forked} here={run.id} onChoose={onChoose} /> : null}
      <details
        className="encore-details"
        onToggle={(event) => event.target.open && setOpened(true)}
        data-testid="tokens"
      >
        <summary>{t('tokens.flow')}</summary>
        {opened ? <TokenPages t={t} run={run} busy={busy} onAct={onAct} /> : null}
      </details>
      {progress ? (
        <p className="encore-progress" role="status" data-testid="fork-progress">
          {progress.said}
        </p>
      ) : null}
      {said ? <p role="status">{said}</p> : null}
      {run.kind !== 'fork' && forked ? <ForkOutcome t={t} fork={forked} here={run.id} onChoose={onChoose} /> : null}
    </Section>
  );
}
