// What is in the answer's box, whether that is right, and where someone types what would be. About values;
// the verdicts further down are about tokens, and nothing here changes them.

function ExpectedAnswer({ t, typed, onAct }) {
  const [value, setValue] = useState(typed);
  const [problem, setProblem] = useState('');
  const send = async (answer) => {
    const { success, response } = await onAct('expect', { answer });
    setProblem(success && typeof response === 'string' ? response : t('answer.not_kept'));
  };
  const submit = (event) => {
    event.preventDefault();
    send(value);
  };
  return (
    <form className="encore-form" onSubmit={submit} data-testid="expect">
      <label className="encore-choice encore-expect">
        <span className="encore-label">{t('answer.expect')}</span>
        <input
          type="text"
          value={value}
          onChange={(event) => setValue(event.target.value)}
          autoComplete="off"
          spellCheck={false}
          aria-invalid={problem !== ''}
          data-testid="expect-input"
        />
      </label>
      <button type="submit" className="encore-button" disabled={!value.trim()} data-testid="expect-save">
        {t('answer.compare')}
      </button>
      {typed ? (
        <button
          type="button"
          className="encore-button"
          onClick={() => send('')}
          data-testid="expect-forget"
        >
          {t('answer.forget')}
        </button>
      ) : null}
      {problem ? (
        <p className="encore-form-note encore-note encore-warning" role="alert" data-testid="expect-problem">
          {problem}
        </p>
      ) : (
        <p className="encore-quiet encore-form-note">{t('answer.note')}</p>
      )}
    </form>
  );
}

function Answer({ t, run, version, onAct }) {
  const { data } = useJson(`/runs/${run.id}/answer`, version);
  if (!data) return null;
  return (
    <div className="encore-answer" role="group" aria-label={t('answer')} data-testid="panel-answer">
      <div role="status">
        {data.line ? (
          <p data-testid="panel-answer-line" data-sameness={data.sameness}>
            {data.line}
          </p>
        ) : null}
        {data.pair ? (
          <p data-testid="panel-answer-pair" data-sameness={data.pair.sameness}>
            {data.pair.line}
          </p>
        ) : null}
      </div>
      <ExpectedAnswer key={`${run.id} ${data.typed}`} t={t} typed={data.typed} onAct={onAct} />
    </div>
  );
}
