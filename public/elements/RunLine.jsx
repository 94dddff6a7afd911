// The quiet line under an answer: seed, decoding, tokens, speed, digest; above it the latest verdicts.
// It asks the server for both, so a line that was away during a replay is right again.
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
  const [progress, setProgress] = useState(null);
  const [said, setSaid] = useState(''); // how the last work ended, where no verdict tells
  const [version, setVersion] = useState(0);
  const [proof, setProof] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [typed, setTyped] = useState(0); // how often someone has typed an expected answer
  const mounted = useRef(true);
  const root = useRef(null);
  const inSight = useRef(false);

  useEffect(() => {
    mounted.current = true;
    fetch(apiClient.buildEndpoint(`/runs/${props.run}/line`))
      .then((response) => response.json())
      .then((found) => mounted.current && setLine(found));
    return () => {
      mounted.current = false;
    };
  }, [version]);

  useEffect(() => {
    if (!socket) return undefined;
    const listen = (event) => {
      if (event.run !== props.run) return;
      if (event.type === 'progress') {
        setProgress(event);
        setSaid('');
      } else if (event.type === 'ended') {
        setProgress(null);
        setSaid(event.said);
        setVersion((n) => n + 1);
      } else if (event.type === 'expected') {
        setTyped((n) => n + 1);
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

  useEffect(() => {
    let wanted = true;
    fetch(apiClient.buildEndpoint(`/runs/${props.run}/answer`))
      .then((response) => (response.ok ? response.json() : null))
      .then((found) => {
        if (!wanted) return;
        inSight.current = root.current.getBoundingClientRect().bottom <= window.innerHeight;
        setAnswer(found);
      })
      .catch(() => wanted && setAnswer(null));
    return () => {
      wanted = false;
    };
  }, [version, typed]);

  useEffect(() => {
    // Comparing takes a moment, and then the line grows; whoever reads further up is left there.
    if (answer?.line && inSight.current) root.current.scrollIntoView({ block: 'nearest' });
  }, [answer]);

  const outcomes = line?.outcomes ?? [];
  const newest = outcomes[0]?.id;
  useEffect(() => {
    // The verdict makes the line taller; without this it would grow under the composer.
    if (version > 0) root.current.scrollIntoView({ block: 'nearest' });
  }, [newest]);

  return (
    <div className="encore-run-line" data-testid="run-line" data-run={props.run} ref={root}>
      {props.note ? (
        <div className="encore-note" data-testid="run-note">
          {props.note}
        </div>
      ) : null}
      {line?.warning ? (
        <div className="encore-note encore-warning" role="alert" data-testid="run-warning">
          {line.warning}
        </div>
      ) : null}
      {progress ? (
        <div className="encore-progress" data-testid="run-line-progress" data-kind={progress.kind}>
          <span>{progress.said}</span>
          {progress.share === null ? null : (
            <progress value={progress.share} aria-label={progress.said} />
          )}
        </div>
      ) : null}
      <div role="status" aria-atomic="false">
        {said ? <div data-testid="run-line-said">{said}</div> : null}
        {outcomes.map((outcome) => (
          <div
            key={outcome.id}
            className={`encore-verdict encore-${outcome.verdict.toLowerCase()}`}
            data-testid="run-line-verdict"
            data-kind={outcome.kind}
            data-verdict={outcome.verdict}
          >
            <span className="encore-shape" aria-hidden="true">
              {outcome.shape}
            </span>{' '}
            <strong>{outcome.title}</strong>
            {outcome.detail ? <span className="encore-detail"> — {outcome.detail}</span> : null}
            {outcome.reason ? <div className="encore-reason">{outcome.reason}</div> : null}
          </div>
        ))}
      </div>
      <div role="status" aria-atomic="false" className="encore-answer">
        {answer?.pair ? (
          <div data-testid="run-line-pair" data-sameness={answer.pair.sameness}>
            {answer.pair.line}
          </div>
        ) : null}
        {answer?.line ? (
          <div data-testid="run-line-answer" data-sameness={answer.sameness}>
            {answer.line}
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
