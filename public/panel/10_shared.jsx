// The reproducibility panel, in parts: llm_backend/ui/http.py serves them joined, in the order of
// their names, as one element (Chainlit compiles an element from a single file and allows no imports
// of our own). Everything a model wrote is rendered as React text, never as HTML.
import { useCallback, useEffect, useMemo, useRef, useState } from 'react';
import { useRecoilValue } from 'recoil';
import { sessionState } from '@chainlit/react-client';

async function fetchJson(path) {
  const response = await fetch(apiClient.buildEndpoint(path));
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || `HTTP ${response.status}`);
  return body;
}

// What `path` holds; asked again when `version` changes. The old data stays until the new is there.
function useJson(path, version = 0) {
  const [state, setState] = useState({ path: null, data: null, problem: null });
  useEffect(() => {
    if (!path) return undefined;
    let wanted = true;
    fetchJson(path)
      .then((data) => wanted && setState({ path, data, problem: null }))
      .catch((error) => wanted && setState({ path, data: null, problem: error.message }));
    return () => {
      wanted = false;
    };
  }, [path, version]);
  return state.path === path ? state : { path, data: null, problem: null };
}

// `t(key, values)`: the server's sentence under "panel." + key with its fields filled in; empty until it is here.
function useStrings() {
  const { data } = useJson('/strings');
  return useCallback(
    (key, values = {}) =>
      (data?.[`panel.${key}`] ?? '').replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? '')),
    [data]
  );
}

function useEvents(handler) {
  const session = useRecoilValue(sessionState);
  const latest = useRef(handler);
  latest.current = handler;
  const socket = session?.socket;
  useEffect(() => {
    if (!socket) return undefined;
    const listener = (event) => latest.current(event);
    socket.on('encore', listener);
    return () => socket.off('encore', listener);
  }, [socket]);
}

function percent(probability) {
  if (probability === null || probability === undefined) return null;
  if (probability < 0.0005) return '< 0.1 %';
  if (probability >= 0.9995 && probability < 1) return '> 99.9 %';
  return `${(probability * 100).toFixed(1)} %`;
}

function nats(value) {
  return Number(value.toPrecision(3)).toString();
}

function count(number) {
  return number.toLocaleString('en');
}

function Section({ id, title, aside, children }) {
  return (
    <section className="encore-section" data-testid={`panel-${id}`} aria-label={title}>
      <h3 className="encore-heading">
        <span>{title}</span>
        {aside}
      </h3>
      {children}
    </section>
  );
}

function Facts({ facts, testid }) {
  return (
    <dl className="encore-facts" data-testid={testid}>
      {facts.map((fact) => (
        <div key={fact.key} data-testid={`fact-${fact.key}`}>
          <dt>{fact.label}</dt>
          <dd>{fact.value}</dd>
        </div>
      ))}
    </dl>
  );
}

function CopyButton({ t, value, testid }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(value);
    setCopied(true);
  };
  return (
    <button type="button" className="encore-button" onClick={copy} data-testid={testid}>
      {copied ? t('run.copied') : t('run.copy')}
    </button>
  );
}

function Verdict({ replay, testid }) {
  return (
    <span className={`encore-verdict encore-${replay.verdict.toLowerCase()}`} data-testid={testid}>
      <span className="encore-shape" aria-hidden="true">
        {replay.shape}
      </span>{' '}
      <strong>{replay.title}</strong>
      {replay.detail ? <span className="encore-detail"> — {replay.detail}</span> : null}
    </span>
  );
}

// The position that a key moves to from `position`, or null where it moves nowhere: left and right go token by
// token, up and down from stop to stop.
function keyTarget(key, position, tokens, stops) {
  const first = tokens[0].position;
  const last = tokens[tokens.length - 1].position;
  switch (key) {
    case 'ArrowRight':
      return Math.min(last, position + 1);
    case 'ArrowLeft':
      return Math.max(first, position - 1);
    case 'ArrowDown':
      return stops.find((stop) => stop > position) ?? position;
    case 'ArrowUp':
      return [...stops].reverse().find((stop) => stop < position) ?? position;
    case 'Home':
      return first;
    case 'End':
      return last;
    default:
      return null;
  }
}
