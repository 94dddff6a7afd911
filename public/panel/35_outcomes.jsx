// What was found out about the run: replays, repetitions with their fork trees, checks; and the form
// that asks for a repetition. One work at a time per chat, so `busy` disables what would start another.

const TIMES = [3, 10, 30, 100];
const NEIGHBOURS = [0, 1, 4, 8, 16, 32, 64];
const SHAPES = ['mixed', 'same', 'prefix'];

function roughly(seconds) {
  return seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}

function Choice({ label, value, options, onChange, disabled, testid }) {
  return (
    <label className="encore-choice">
      <span className="encore-label">{label}</span>
      <select
        value={value}
        disabled={disabled}
        onChange={(event) => onChange(event.target.value)}
        data-testid={testid}
      >
        {options.map(([option, words]) => (
          <option key={option} value={option}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

function RepeatForm({ t, run, busy, onAct }) {
  const [open, setOpen] = useState(false);
  const summary = useRef(null);
  const [times, setTimes] = useState(10);
  const [neighbours, setNeighbours] = useState(4);
  const [shape, setShape] = useState('mixed');
  const start = (event) => {
    event.preventDefault();
    setOpen(false);
    summary.current.focus(); // the button that had it is gone with the form
    onAct('repeat', { times, neighbours, shape });
  };
  const about = neighbours ? 'repeat.about.load' : 'repeat.about';
  return (
    <details
      className="encore-details"
      open={open}
      onToggle={(event) => setOpen(event.target.open)}
      data-testid="repeat"
    >
      <summary ref={summary}>{t('repeat')}</summary>
      <form className="encore-form" onSubmit={start}>
        <Choice
          label={t('repeat.times')}
          value={times}
          options={TIMES.map((n) => [n, `×${n}`])}
          onChange={(chosen) => setTimes(Number(chosen))}
          testid="repeat-times"
        />
        <Choice
          label={t('repeat.neighbours')}
          value={neighbours}
          options={NEIGHBOURS.map((n) => [n, n || t('repeat.alone')])}
          onChange={(chosen) => setNeighbours(Number(chosen))}
          testid="repeat-neighbours"
        />
        <Choice
          label={t('repeat.shape')}
          value={shape}
          disabled={!neighbours}
          options={SHAPES.map((name) => [name, t(`repeat.shape.${name}`)])}
          onChange={setShape}
          testid="repeat-shape"
        />
        <button
          type="submit"
          className="encore-button encore-primary"
          disabled={busy}
          data-testid="repeat-start"
        >
          {t('repeat.start')}
        </button>
        <p className="encore-quiet encore-form-note">
          {run.duration_s ? `${t(about, { time: roughly(run.duration_s * times) })} ` : ''}
          {neighbours ? t('repeat.load') : ''}
        </p>
      </form>
    </details>
  );
}

function Working({ progress }) {
  return (
    <div className="encore-progress" data-testid="progress" data-kind={progress.kind}>
      <span>{progress.said}</span>
      {progress.share === null ? null : <progress value={progress.share} aria-label={progress.said} />}
    </div>
  );
}

function At({ at }) {
  return (
    <time className="encore-quiet" dateTime={at}>
      {new Date(at).toLocaleTimeString()}
    </time>
  );
}

function ReplayItem({ replay, chosen, onChoose }) {
  return (
    <button
      type="button"
      className="encore-item"
      aria-pressed={replay.id === chosen}
      onClick={() => onChoose(replay.id)}
      data-testid="replay-item"
      data-verdict={replay.verdict}
    >
      <Verdict replay={replay} testid="replay-verdict" />
      <At at={replay.at} />
    </button>
  );
}

const DEEPEST = 6; // levels of indentation; a deeper tree goes on at the same one

function Step({ t, step, chosen, onChoose }) {
  return (
    <div className="encore-step" data-testid="repeat-step">
      <Verdict replay={step} testid="repeat-verdict" />
      <ul className="encore-tree">
        {step.lines.map((line, index) => (
          <li key={index} style={{ marginLeft: `${Math.min(line.depth, DEEPEST)}rem` }}>
            {line.text}
          </li>
        ))}
      </ul>
      <details className="encore-details" data-testid="repeat-each">
        <summary>{t('outcome.each', { n: step.replays.length })}</summary>
        <ul className="encore-list">
          {step.replays.map((replay) => (
            <li key={replay.id}>
              <ReplayItem replay={replay} chosen={chosen} onChoose={onChoose} />
            </li>
          ))}
        </ul>
      </details>
    </div>
  );
}

function Repetition({ t, outcome, chosen, onChoose }) {
  return (
    <div className="encore-outcome" data-testid="repeat-outcome">
      {outcome.steps.map((step, index) => (
        <Step key={index} t={t} step={step} chosen={chosen} onChoose={onChoose} />
      ))}
      <p className="encore-quiet">{outcome.note}</p>
      <At at={outcome.at} />
    </div>
  );
}

function Check({ t, outcome }) {
  return (
    <div className="encore-outcome" data-testid="check-outcome" data-verdict={outcome.check_verdict}>
      <Verdict replay={outcome} testid="check-verdict" />
      <ul className="encore-tree">
        {outcome.sentences.map((sentence) => (
          <li key={sentence}>{sentence}</li>
        ))}
      </ul>
      {outcome.changes.length ? (
        <details className="encore-details">
          <summary>{t('check.changes')}</summary>
          <ul className="encore-tree">
            {outcome.changes.map((change) => (
              <li key={change}>{change}</li>
            ))}
          </ul>
        </details>
      ) : null}
      <At at={outcome.at} />
    </div>
  );
}

function Outcomes({ t, run, progress, busy, said, chosen, onChoose, onAct }) {
  const show = { t, chosen, onChoose };
  return (
    <Section id="outcomes" title={t('outcomes')}>
      {progress ? <Working progress={progress} /> : null}
      <RepeatForm t={t} run={run} busy={busy} onAct={onAct} />
      <p role="status" data-testid="outcome-said" className={said ? '' : 'encore-empty'}>
        {said}
      </p>
      {!run.outcomes.length && !progress ? <p className="encore-quiet">{t('outcomes.none')}</p> : null}
      <ul className="encore-list" data-testid="outcome-list">
        {run.outcomes.map((outcome) => (
          <li key={outcome.id}>
            {outcome.kind === 'replay' ? <ReplayItem replay={outcome} {...show} /> : null}
            {outcome.kind === 'repeat' ? <Repetition outcome={outcome} {...show} /> : null}
            {outcome.kind === 'check' ? <Check t={t} outcome={outcome} /> : null}
          </li>
        ))}
      </ul>
    </Section>
  );
}
