// What has been proven for exactly this engine, these settings and this load. Greyed, with the reason,
// when the engine that runs now is another one.

function Proof({ t, run }) {
  const { data } = useJson(`/runs/${run.id}/proof`, run); // asked again whenever the run is
  if (!data) return <div className="encore-proof encore-proof-empty" />;
  return (
    <div
      className="encore-proof"
      data-testid="proof"
      data-state={data.state}
      data-grey={data.grey}
      role="group"
      aria-label={t('proof')}
    >
      {data.grey ? (
        <p className="encore-proof-engine" data-testid="proof-engine">
          {data.engine_sentence}
        </p>
      ) : null}
      <p className="encore-proof-claim" data-testid="proof-claim">
        <span className="encore-shape" aria-hidden="true">
          {data.shape}
        </span>{' '}
        {data.sentence}
      </p>
      {!data.grey && data.engine_sentence ? (
        <p className="encore-quiet" data-testid="proof-engine">
          {data.engine_sentence}
        </p>
      ) : null}
      {data.loads.length ? (
        <details className="encore-details" data-testid="proof-loads">
          <summary>{t('proof.loads')}</summary>
          <table className="encore-table">
            <thead>
              <tr>
                <th>{t('proof.load')}</th>
                <th>{t('proof.result')}</th>
              </tr>
            </thead>
            <tbody>
              {data.loads.map((row) => (
                <tr key={row.load}>
                  <td>{row.load}</td>
                  <td>{row.result}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {data.caveat ? <p className="encore-quiet">{data.caveat}</p> : null}
        </details>
      ) : null}
      {data.changes.length ? (
        <details className="encore-details" data-testid="proof-changes">
          <summary>{t('proof.changes')}</summary>
          <table className="encore-table">
            <thead>
              <tr>
                <th>{t('changes.what')}</th>
                <th>{t('proof.then')}</th>
                <th>{t('proof.now')}</th>
                <th>{t('changes.bits')}</th>
              </tr>
            </thead>
            <tbody>
              {data.changes.map((change) => (
                <tr key={change.key} data-relevance={change.relevance}>
                  <td>{change.field}</td>
                  <td>{change.reference ?? t('diff.unknown')}</td>
                  <td>{change.candidate ?? t('diff.unknown')}</td>
                  <td>{change.relevance_label}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </details>
      ) : null}
    </div>
  );
}
