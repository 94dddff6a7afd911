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
  const [progress, setProgress] = useState(null); // {run, done, recorded}
  const [stopped, setStopped] = useState(null); // id of the run whose replay was stopped
  const [bringUp, setBringUp] = useState(false); // the reader asked for this replay: show its end
  const [version, setVersion] = useState(0);

  const choose = (id, followOn = false) => {
    setRunId(id);
    setFollowing(followOn);
    setComparison(null);
    setNewer(null);
  };

  const newest = useJson(runId ? null : `/runs?limit=1&chat=${props.chat}`, version);
  useEffect(() => {
    const found = newest.data?.[0];
    if (!runId && found?.digest) setRunId(found.id);
  }, [newest.data, runId]);

  useEvents((event) => {
    if (event.type === 'run') {
      if (!runId || (following && !isReading(root.current))) choose(event.run, true);
      else setNewer(event.run);
      setVersion((n) => n + 1);
    } else if (event.type === 'replaying') {
      if (event.done === 0) {
        if (event.run !== runId) choose(event.run);
        setStopped(null);
      }
      setProgress(event);
    } else if (event.type === 'replayed') {
      setProgress(null);
      setStopped(event.stopped ? event.run : null);
      if (event.comparison && event.run === runId) {
        setComparison(event.comparison);
        setBringUp(!isReading(root.current));
      }
      setVersion((n) => n + 1);
    }
  });

  const run = useJson(runId ? `/runs/${runId}` : null, version);
  const shownComparison = comparison ?? run.data?.replays[0]?.id ?? null;
  const diff = useJson(shownComparison ? `/comparisons/${shownComparison}` : null);
  useEffect(() => {
    if (!bringUp || diff.data?.id !== comparison) return;
    root.current.querySelector('[data-testid=panel-replays]')?.scrollIntoView({ block: 'start' });
    setBringUp(false);
  }, [bringUp, diff.data, comparison]);
  const problem = run.problem ?? diff.problem;

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
            busy={progress !== null}
            onReplay={() => callAction({ name: 'replay', payload: { run: runId } })}
          />
          <Replays
            t={t}
            run={run.data}
            progress={progress?.run === runId ? progress : null}
            stopped={stopped === runId}
            chosen={shownComparison}
            onChoose={setComparison}
          />
        </>
      ) : null}
      {diff.data ? <Diff key={diff.data.id} t={t} view={diff.data} digest={run.data?.digest} /> : null}
      <Runs t={t} chat={props.chat} version={version} chosen={runId} onChoose={choose} />
    </div>
  );
}
