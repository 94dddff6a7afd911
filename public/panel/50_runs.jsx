// The runs of this chat, or of all: a reloaded page finds its earlier runs here.

const PAGE = 50;

function Runs({ t, chat, version, chosen, onChoose }) {
  const [everywhere, setEverywhere] = useState(false);
  const [replays, setReplays] = useState(false);
  const [older, setOlder] = useState([]);
  const path = `/runs?limit=${PAGE}&replays=${replays}${everywhere ? '' : `&chat=${chat}`}`;
  const { data, problem } = useJson(path, version);
  useEffect(() => setOlder([]), [path, version]);
  const shown = [...(data ?? []), ...older];
  const full = shown.length > 0 && shown.length % PAGE === 0;
  const more = async () => {
    const next = await fetchJson(`${path}&before=${shown[shown.length - 1].id}`);
    setOlder((runs) => [...runs, ...next]);
  };
  const scope = (all, label, testid) => (
    <button
      type="button"
      className="encore-tab"
      aria-pressed={everywhere === all}
      onClick={() => setEverywhere(all)}
      data-testid={testid}
    >
      {label}
    </button>
  );
  const scopes = (
    <span className="encore-scopes">
      <label className="encore-toggle">
        <input
          type="checkbox"
          checked={replays}
          onChange={(event) => setReplays(event.target.checked)}
          data-testid="runs-replays"
        />
        {t('runs.replays')}
      </label>
      {scope(false, t('runs.chat'), 'runs-this-chat')}
      {scope(true, t('runs.all'), 'runs-all')}
    </span>
  );
  return (
    <Section id="runs" title={t('runs')} aside={scopes}>
      {problem ? <p role="alert">{t('failed', { problem })}</p> : null}
      {data && !shown.length ? <p className="encore-quiet">{t('empty')}</p> : null}
      <ul className="encore-list" data-testid="run-list">
        {shown.map((run) => (
          <li key={run.id}>
            <button
              type="button"
              className="encore-item"
              aria-pressed={run.id === chosen}
              disabled={run.digest === null}
              onClick={() => onChoose(run.id)}
              data-testid="run-item"
            >
              <span className="encore-item-question">{run.question}</span>
              <span className="encore-quiet">
                {run.kind === 'ask' ? '' : `${run.kind_label} · `}
                {run.summary}
              </span>
              {run.verdict_name ? <span>{run.verdict_name}</span> : null}
            </button>
          </li>
        ))}
      </ul>
      {full ? (
        <button type="button" className="encore-button" onClick={more}>
          {t('runs.more')}
        </button>
      ) : null}
    </Section>
  );
}
