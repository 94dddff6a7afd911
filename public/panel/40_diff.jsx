// One comparison: the equal beginning folded, the fork in a frame, the rest aligned for reading.

// Spaces and line ends are part of a token; show them where nothing else would be seen.
function visible(text) {
  if (text.trim() === '') return text.replace(/ /g, '␣').replace(/\t/g, '⇥').replace(/\n/g, '⏎');
  return text;
}

function Token({ token, mark, title, active, picked, onPick, onMove }) {
  const breaks = token.text.endsWith('\n');
  return (
    <>
      <span
        className={`encore-token ${mark ? `encore-${mark}` : ''}`}
        data-testid={mark ? `token-${mark}` : undefined}
        title={title}
        role="button"
        aria-pressed={picked}
        data-position={token.position}
        tabIndex={active ? 0 : -1}
        onClick={() => onPick(token)}
        onKeyDown={(event) => onMove(event, token)}
      >
        {token.text.trim() === '' && (mark || breaks) ? visible(token.text) : token.text}
      </span>
      {breaks ? <br /> : null}
    </>
  );
}

function Bars({ t, token, names, testid }) {
  const own = { id: token.id, text: token.text, probability: token.probability };
  const others = token.top.filter((other) => other.id !== token.id);
  const shown = [own, ...others].sort((a, b) => (b.probability ?? -1) - (a.probability ?? -1));
  return (
    <ol className="encore-bars" data-testid={testid}>
      {shown.map((entry) => (
        <li key={entry.id} className={entry.id === token.id ? 'encore-own' : ''}>
          <span className="encore-bar-name" title={names.get(entry.id) ?? entry.text}>
            {visible(names.get(entry.id) ?? entry.text)}
          </span>
          <span className="encore-bar" aria-hidden="true">
            <span style={{ width: `${(entry.probability ?? 0) * 100}%` }} />
          </span>
          <span className="encore-bar-value">{percent(entry.probability) ?? t('diff.unknown')}</span>
        </li>
      ))}
    </ol>
  );
}

function ForkSide({ t, label, token, end, names, testid }) {
  return (
    <div className="encore-fork-side" data-testid={testid}>
      <span className="encore-label">{label}</span>
      {token ? (
        <>
          <span className="encore-fork-token" data-testid={`${testid}-token`}>
            {visible(token.text)}
          </span>
          <Bars t={t} token={token} names={names} testid={`${testid}-bars`} />
        </>
      ) : (
        <span className="encore-quiet">
          {t('diff.ended')} ({end})
        </span>
      )}
    </div>
  );
}

function Fork({ t, view, names }) {
  const { fork, reference, candidate } = view.window;
  const at = (side) => side.tokens.find((token) => token.position === fork);
  return (
    <div className="encore-fork" data-testid="fork" role="group" aria-label={t('diff.fork', { n: fork })}>
      <div className="encore-fork-title" data-testid="fork-title">
        {t('diff.fork', { n: count(fork) })}
        {view.margin !== null ? (
          <abbr title={t('diff.nats')} data-testid="fork-margin">
            {t('diff.margin', { x: nats(view.margin) })}
          </abbr>
        ) : null}
      </div>
      <div className="encore-columns">
        <ForkSide
          t={t}
          label={t('diff.recorded')}
          token={at(reference)}
          end={view.ends.reference}
          names={names}
          testid="fork-recorded"
        />
        <ForkSide
          t={t}
          label={t('diff.replayed')}
          token={at(candidate)}
          end={view.ends.candidate}
          names={names}
          testid="fork-replayed"
        />
      </div>
    </div>
  );
}

// The equal beginning that the window leaves out; unfolded a thousand tokens at a time.
function Folded({ t, digest, n }) {
  const [tokens, setTokens] = useState([]);
  const [problem, setProblem] = useState(null);
  const more = async () => {
    const start = tokens.length;
    const path = `/receipts/${digest}/tokens?start=${start}&stop=${Math.min(start + 1000, n)}`;
    try {
      const next = await fetchJson(path);
      setTokens((shown) => [...shown, ...next]);
    } catch (error) {
      setProblem(error.message);
    }
  };
  return (
    <div className="encore-folded" data-testid="folded">
      {tokens.length ? (
        <div className="encore-flow encore-dim">{tokens.map((token) => token.text).join('')}</div>
      ) : null}
      {tokens.length < n ? (
        <button type="button" className="encore-fold" onClick={more} data-testid="unfold">
          {t('diff.folded', { n: count(n - tokens.length) })} · {t('diff.unfold')}
        </button>
      ) : null}
      {problem ? <p role="alert">{t('failed', { problem })}</p> : null}
    </div>
  );
}

// Which mark the token at `position` of one side carries after the fork, or where it drifted.
function marks(window, side) {
  const [start, stop] = [`${side}_start`, `${side}_stop`];
  const own = side === 'reference' ? 'delete' : 'insert';
  const changed = new Set();
  for (const op of window.ops) {
    if (op.kind !== own) continue;
    for (let position = op[start]; position < op[stop]; position += 1) changed.add(position);
  }
  return changed;
}

function Column({ t, label, window, side, from, to, picked, onPick, testid }) {
  const changed = useMemo(() => marks(window, side), [window, side]);
  const other = useMemo(() => {
    const tokens = window[side === 'reference' ? 'candidate' : 'reference'].tokens;
    return new Map(tokens.map((token) => [token.position, token]));
  }, [window, side]);
  const shown = window[side].tokens.filter((token) => token.position >= from && token.position < to);
  // Nats by which a token's probability moved before any fork; 0 where it did not or nobody knows.
  const moved = (token) => {
    const twin = other.get(token.position);
    const beforeFork = window.fork === null || token.position < window.fork;
    const known = beforeFork && twin && token.logprob !== null && twin.logprob !== null;
    return known ? Math.abs(token.logprob - twin.logprob) : 0;
  };
  const markOf = (token) => (changed.has(token.position) ? 'different' : moved(token) ? 'drift' : '');
  const stops = shown.filter(markOf).map((token) => token.position);
  // One tab stop a column; from there the arrow keys go on.
  const [active, setActive] = useState(null);
  const flow = useRef(null);
  const entered = active ?? stops[0] ?? shown[0]?.position;
  const pick = (token) => {
    setActive(token.position);
    onPick(token);
  };
  const move = (event, token) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      pick(token);
      return;
    }
    const target = keyTarget(event.key, token.position, shown, stops);
    if (target === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    setActive(target);
    flow.current.querySelector(`[data-position="${target}"]`).focus();
  };
  return (
    <div className="encore-column" data-testid={testid}>
      <span className="encore-label">{label}</span>
      <div className="encore-flow" role="group" aria-label={label} ref={flow}>
        {shown.map((token) => (
          <Token
            key={token.position}
            token={token}
            mark={markOf(token)}
            title={moved(token) ? t('diff.drifted', { x: nats(moved(token)) }) : undefined}
            active={token.position === entered}
            picked={token === picked}
            onPick={pick}
            onMove={move}
          />
        ))}
        {window[side].left_out && to === Infinity ? (
          <span className="encore-quiet"> {t('diff.left_out', { n: count(window[side].left_out) })}</span>
        ) : null}
      </div>
    </div>
  );
}

function Columns({ t, window, from, to, picked, onPick, testid }) {
  const shared = { t, window, from, to, picked, onPick };
  return (
    <div className="encore-columns">
      <Column {...shared} label={t('diff.recorded')} side="reference" testid={`${testid}-recorded`} />
      <Column {...shared} label={t('diff.replayed')} side="candidate" testid={`${testid}-replayed`} />
    </div>
  );
}

function Picked({ t, token, names }) {
  return (
    <div className="encore-picked" data-testid="picked-token" role="status">
      <span className="encore-label">{t('diff.token', { position: count(token.position), id: token.id })}</span>
      <Bars t={t} token={token} names={names} testid="picked-bars" />
    </div>
  );
}

function Changes({ t, changes }) {
  if (!changes.length) return <p className="encore-quiet">{t('changes.none')}</p>;
  return (
    <table className="encore-table" data-testid="engine-changes">
      <thead>
        <tr>
          <th>{t('changes.what')}</th>
          <th>{t('diff.recorded')}</th>
          <th>{t('diff.replayed')}</th>
          <th>{t('changes.bits')}</th>
        </tr>
      </thead>
      <tbody>
        {changes.map((change) => (
          <tr key={change.field} data-relevance={change.relevance}>
            <td>{change.field}</td>
            <td>{change.reference ?? t('diff.unknown')}</td>
            <td>{change.candidate ?? t('diff.unknown')}</td>
            <td>{change.relevance_label}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// Where token ids are missing: both texts around their first different character, which is marked.
function TextFork({ t, fork }) {
  const at = fork.position - fork.start;
  return (
    <table className="encore-table encore-text-fork" data-testid="text-fork">
      <tbody>
        {['reference', 'candidate'].map((side) => (
          <tr key={side} data-testid={`text-fork-${side}`}>
            <th scope="row">{t(side === 'reference' ? 'diff.recorded' : 'diff.replayed')}</th>
            <td>
              {fork[side].slice(0, at)}
              <mark className="encore-text-mark">{fork[side].slice(at) || '∎'}</mark>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Diff({ t, view, digest }) {
  const [picked, setPicked] = useState(null);
  const { window } = view;
  const names = useMemo(() => {
    const seen = [...window.reference.tokens, ...window.candidate.tokens];
    return new Map(seen.map((token) => [token.id, token.text]));
  }, [window]);
  const diverged = window.fork !== null;
  const folded = view.verdict === 'IDENTICAL' ? view.compared : window.folded;
  const pick = (token) => setPicked((shown) => (shown === token ? null : token));
  const shared = { t, window, picked, onPick: pick };
  const { sentences } = view;
  return (
    <Section id="diff" title={t('diff')}>
      <p role="status">
        <Verdict replay={view} testid="diff-verdict" />
      </p>
      {sentences.length ? (
        <ul className="encore-sentences" data-testid="diff-sentences">
          {sentences.map((sentence) => (
            <li key={sentence}>{sentence}</li>
          ))}
        </ul>
      ) : null}
      <Strip t={t} view={view} />
      {view.distributions.length ? (
        <details className="encore-details" data-testid="diff-distributions">
          <summary>{t('diff.distributions')}</summary>
          <ul className="encore-sentences">
            {view.distributions.map((sentence) => (
              <li key={sentence}>{sentence}</li>
            ))}
          </ul>
        </details>
      ) : null}
      {folded ? <Folded t={t} digest={digest} n={folded} /> : null}
      {window.text_fork ? <TextFork t={t} fork={window.text_fork} /> : null}
      {view.verdict === 'IDENTICAL' || window.text_fork ? null : diverged ? (
        <>
          {window.fork > window.folded ? (
            <Columns {...shared} from={0} to={window.fork} testid="before" />
          ) : null}
          <Fork t={t} view={view} names={names} />
          <Columns {...shared} from={window.fork} to={Infinity} testid="after" />
          <p className="encore-quiet">{t('diff.legend')}</p>
        </>
      ) : (
        <Columns {...shared} from={0} to={Infinity} testid="window" />
      )}
      {picked ? <Picked t={t} token={picked} names={names} /> : null}
      <h4 className="encore-heading">{t('changes')}</h4>
      <Changes t={t} changes={view.changes} />
    </Section>
  );
}
