// The quiet line under an answer: seed, decoding, tokens, speed, digest; above it the verdict of the
// latest replay. It asks the server for both, so a line that was away during a replay is right again.
import { useEffect, useRef, useState } from 'react';
import { useRecoilValue } from 'recoil';
import { sessionState } from '@chainlit/react-client';

// What has been proven for this engine, settings and load, and whether another engine runs now. The
// whole sentence is in the panel and in the tooltip.
function ProofMark({ proof }) {
  const sentence = [proof.sentence, proof.engine_sentence].filter(Boolean).join(' ');
  return (
    <span
      className="encore-proof-mark"
      data-testid="run-line-proof"
      data-state={proof.state}
      data-grey={proof.grey}
      title={sentence}
    >
      {' · '}
      <span aria-hidden="true">{proof.shape}</span> {proof.short}
    </span>
  );
}

export default function RunLine() {
  const session = useRecoilValue(sessionState);
  const socket = session?.socket;
  const [line, setLine] = useState(null);
  const [words, setWords] = useState({});
  const [progress, setProgress] = useState(null);
  const [stopped, setStopped] = useState(false);
  const [version, setVersion] = useState(0);
  const [proof, setProof] = useState(null);
  const mounted = useRef(true);
  const root = useRef(null);

  useEffect(() => {
    mounted.current = true;
    const get = (path) => fetch(apiClient.buildEndpoint(path)).then((response) => response.json());
    Promise.all([get(`/runs/${props.run}/line`), get('/strings')]).then(([found, strings]) => {
      if (!mounted.current) return;
      setLine(found);
      setWords(strings);
    });
    return () => {
      mounted.current = false;
    };
  }, [version]);

  useEffect(() => {
    if (!socket) return undefined;
    const listen = (event) => {
      if (event.run !== props.run) return;
      if (event.type === 'replaying') {
        setProgress(event);
        setStopped(false);
      } else if (event.type === 'replayed') {
        setProgress(null);
        setStopped(Boolean(event.stopped));
        setVersion((n) => n + 1);
      }
    };
    socket.on('encore', listen);
    return () => socket.off('encore', listen);
  }, [socket]);

  useEffect(() => {
    let wanted = true;
    fetch(apiClient.buildEndpoint(`/runs/${props.run}/proof`))
      .then((response) => (response.ok ? response.json() : null))
      .then((found) => wanted && setProof(found))
      .catch(() => wanted && setProof(null));
    return () => {
      wanted = false;
    };
  }, [version]);

  const replay = line?.replay;
  useEffect(() => {
    // The verdict makes the line taller; without this it would grow under the composer.
    if (version > 0) root.current.scrollIntoView({ block: 'nearest' });
  }, [replay?.id]);
  const fill = (key, values) =>
    (words[key] ?? '').replace(/\{(\w+)\}/g, (_, name) => values[name].toLocaleString('en'));

  return (
    <div className="encore-run-line" data-testid="run-line" data-run={props.run} ref={root}>
      {props.note ? (
        <div className="encore-note" data-testid="run-note">
          {props.note}
        </div>
      ) : null}
      <div role="status">
        {progress ? (
          <div className="encore-progress" data-testid="run-line-progress">
            {fill('panel.replaying', progress)}
            <progress
              value={progress.done}
              max={Math.max(progress.recorded, progress.done, 1)}
            />
          </div>
        ) : null}
        {!progress && stopped ? (
          <div data-testid="run-line-stopped">{words['panel.replay_stopped']}</div>
        ) : null}
        {!progress && replay ? (
          <div
            className={`encore-verdict encore-${replay.verdict.toLowerCase()}`}
            data-testid="run-line-verdict"
            data-verdict={replay.verdict}
          >
            <span className="encore-shape" aria-hidden="true">
              {replay.shape}
            </span>{' '}
            <strong>{replay.title}</strong>
            {replay.detail ? <span className="encore-detail"> — {replay.detail}</span> : null}
            {replay.reason ? <div className="encore-reason">{replay.reason}</div> : null}
          </div>
        ) : null}
      </div>
      <div className="encore-summary" data-testid="run-line-summary">
        {line?.summary}
        {proof ? <ProofMark proof={proof} /> : null}
      </div>
    </div>
  );
}
