// One recorded run: what was asked, with which settings, and what it came to.

function Seed({ t, run }) {
  return (
    <div className="encore-seed">
      <span className="encore-label">{t('seed')}</span>
      <span className="encore-seed-value" data-testid="run-seed">
        {run.seed ?? '—'}
      </span>
      {run.seed !== null ? <CopyButton t={t} value={run.seed} testid="copy-seed" /> : null}
      {run.greedy ? <span className="encore-quiet">{t('run.greedy_seed')}</span> : null}
      {!run.greedy && run.seed === null ? <span className="encore-quiet">{t('run.no_seed')}</span> : null}
    </div>
  );
}

function Settings({ t, settings }) {
  return (
    <table className="encore-table encore-settings" data-testid="run-settings">
      <thead>
        <tr>
          <th>{t('settings.name')}</th>
          <th>{t('settings.sent')}</th>
          <th>{t('settings.effective')}</th>
        </tr>
      </thead>
      <tbody>
        {settings.map((setting) => (
          <tr key={setting.key} data-testid={`setting-${setting.key}`}>
            <td>{setting.label}</td>
            <td>{setting.sent}</td>
            <td
              className={setting.changed ? 'encore-changed' : ''}
              title={setting.changed ? t('settings.changed') : undefined}
            >
              {setting.changed ? `→ ${setting.effective}` : setting.effective}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Sent({ t, messages }) {
  return (
    <details className="encore-details" data-testid="run-messages">
      <summary>{t('run.messages', { n: messages.length })}</summary>
      {messages.map((message, index) => (
        <div key={index} className="encore-message">
          <span className="encore-label">{message.role}</span>
          <pre>{message.content}</pre>
        </div>
      ))}
    </details>
  );
}

function Run({ t, run, busy, version, onAct }) {
  const digests = [
    { key: 'digest', label: t('digest'), value: run.digest.replace('sha256:', '').slice(0, 12) },
    { key: 'fingerprint', label: t('fingerprint'), value: run.fingerprint }
  ];
  return (
    <Section id="run" title={t('run')}>
      <p className="encore-question" data-testid="run-question">
        {run.question}
      </p>
      {run.warning ? (
        <p className="encore-note encore-warning" data-testid="panel-run-warning">
          {run.warning}
        </p>
      ) : null}
      <Seed t={t} run={run} />
      <Facts facts={[...run.facts, ...digests]} testid="run-facts" />
      <Answer key={run.id} t={t} run={run} version={version} onAct={onAct} />
      <Proof t={t} run={run} />
      <div className="encore-row">
        <button
          type="button"
          className="encore-button encore-primary"
          disabled={busy}
          onClick={() => onAct('replay')}
          data-testid="panel-replay"
        >
          {t('run.replay')}
        </button>
        <button
          type="button"
          className="encore-button"
          disabled={busy}
          onClick={() => onAct('check')}
          data-testid="panel-check"
        >
          {t('run.check')}
        </button>
        <a
          className="encore-button"
          href={apiClient.buildEndpoint(`/receipts/${run.digest}?download=true`)}
          download
          data-testid="export-receipt"
        >
          {t('run.export')}
        </a>
      </div>
      <Share key={`share ${run.id}`} t={t} run={run} />
      <Engines t={t} run={run} busy={busy} version={version} onAct={onAct} />
      <details className="encore-details" open>
        <summary>{t('settings')}</summary>
        <Settings t={t} settings={run.settings} />
      </details>
      <Sent t={t} messages={run.messages} />
    </Section>
  );
}
