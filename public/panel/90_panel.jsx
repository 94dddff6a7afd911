// The panel itself. It follows the newest run until someone chooses one or scrolls; from then on new
// runs only announce themselves.

const READING = 40; // pixels scrolled

function isReading(root) {
  for (let node = root; node; node = node.parentElement) if (node.scrollTop > READING) return true;
  return false;
}

export default function Reproducibility() {
  const t = useStrings();
  const root = useRef(null);
  const [runId, setRunId] = useState(props.run);
  const [following, setFollowing] = useState(!props.run);
  const [comparison, setComparison] = useState(null);
  const [newer, setNewer] = useState(null);
  const [progress, setProgress] = useState(null); // {run, kind, share, said}
  const [ended, setEnded] = useState(null); // {run, said}: the last work's end, where words are needed
  const [bringUp, setBringUp] = useState(null); // what was shown before the reader's work ended
  const [version, setVersion] = useState(0);
  const [forked, setForked] = useState(null); // {run, fork}: the last fork made here and off which run

  const choose = (id, followOn = false) => {
    setRunId(id);
    setFollowing(followOn);
    setComparison(null);
    setNewer(null);
  };

  const newest = useJson(runId ? null : `/runs?limit=1&replays=false&chat=${props.chat}`, version);
  useEffect(() => {
    const found = newest.data?.[0];
    if (!runId && found?.digest) setRunId(found.id);
  }, [newest.data, runId]);

  useEvents((event) => {
    if (event.type === 'run') {
      if (!runId || (following && !isReading(root.current))) choose(event.run, true);
      else setNewer(event.run);
      setVersion((n) => n + 1);
    } else if (event.type === 'progress') {
      if (!progress) {
        if (event.run !== runId) choose(event.run);
        setEnded(null);
      }
      setProgress(event);
    } else if (event.type === 'ended') {
      setProgress(null);
      setEnded(event);
      if (event.kept && event.kind === 'fork') {
        setForked(event);
      } else if (event.kept && event.run === runId) {
        if (event.kind !== 'check') setComparison(event.comparison);
        if (!isReading(root.current)) setBringUp(run.data);
      }
      setVersion((n) => n + 1);
    } else if (event.type === 'expected') {
      setVersion((n) => n + 1);
    }
  });

  const run = useJson(runId ? `/runs/${runId}` : null, version);
  const shownComparison = comparison ?? run.data?.telling_replay ?? null;
  const diff = useJson(shownComparison ? `/comparisons/${shownComparison}` : null);
  useEffect(() => {
    if (!bringUp || run.data === bringUp) return;
    root.current.querySelector('[data-testid=panel-outcomes]')?.scrollIntoView({ block: 'start' });
    setBringUp(null);
  }, [bringUp, run.data]);
  const problem = run.problem ?? diff.problem;
  const busy = progress !== null;
  const act = (name, more = {}) => callAction({ name, payload: { run: runId, ...more } });

  return (
    <div className="encore-panel" data-testid="panel" ref={root}>
      {newer ? (
        <div className="encore-newer" role="status" data-testid="newer-run">
          {t('newer')}
          <button type="button" className="encore-button" onClick={() => choose(newer, true)}>
            {t('show')}
          </button>
        </div>
      ) : null}
      {problem ? (
        <p role="alert" data-testid="panel-problem">
          {t('failed', { problem })}
        </p>
      ) : null}
      {runId && !run.data && !problem ? <p className="encore-quiet">{t('loading')}</p> : null}
      {run.data ? (
        <>
          <Engine t={t} engine={run.data.engine} />
          <Run
            t={t}
            run={run.data}
            busy={busy}
            version={version}
            onAct={act}
          />
          <Tokens
            key={`tokens-${runId}`}
            t={t}
            run={run.data}
            progress={progress?.run === runId && progress.kind === 'fork' ? progress : null}
            said={ended?.run === runId && ended.kind === 'fork' ? ended.said : ''}
            busy={busy}
            forked={run.data.kind === 'fork' ? runId : forked?.run === runId ? forked.fork : null}
            onAct={act}
            onChoose={choose}
          />
          <Outcomes
            key={runId}
            t={t}
            run={run.data}
            progress={progress?.run === runId && progress.kind !== 'fork' ? progress : null}
            busy={busy}
            said={ended?.run === runId && ended.kind !== 'fork' ? ended.said : ''}
            chosen={shownComparison}
            onChoose={setComparison}
            onAct={act}
          />
        </>
      ) : null}
      {diff.data ? <Diff key={diff.data.id} t={t} view={diff.data} digest={run.data?.digest} /> : null}
      <Runs t={t} chat={props.chat} version={version} chosen={runId} onChoose={choose} />
    </div>
  );
}
