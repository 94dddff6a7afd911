// A run for people without a login: a link that can be taken back, or one file.

function Share({ t, run }) {
  const path = `/runs/${run.id}/shares`;
  const [version, setVersion] = useState(0);
  const [link, setLink] = useState('');
  const [failed, setFailed] = useState('');
  const { data } = useJson(path, version);
  const send = async (method) => {
    setFailed('');
    try {
      const response = await fetch(apiClient.buildEndpoint(path), { method });
      const body = await response.json();
      if (!response.ok) throw new Error(body.detail || `HTTP ${response.status}`);
      setLink(body.path ? apiClient.buildEndpoint(body.path).split('?')[0] : '');
      setVersion((n) => n + 1);
    } catch (error) {
      setFailed(error.message);
    }
  };
  const links = data?.links ?? 0;
  return (
    <details className="encore-details" data-testid="share">
      <summary>{t('share')}</summary>
      <div className="encore-row">
        <button type="button" className="encore-button" onClick={() => send('POST')} data-testid="share-link">
          {t('share.link')}
        </button>
        <a
          className="encore-button"
          href={apiClient.buildEndpoint(`/runs/${run.id}/file`)}
          download
          data-testid="share-file"
        >
          {t('share.file')}
        </a>
        {links ? (
          <button
            type="button"
            className="encore-button"
            onClick={() => send('DELETE')}
            data-testid="share-revoke"
          >
            {t('share.revoke')}
          </button>
        ) : null}
      </div>
      <div role="status" className="encore-share-news">
        {failed ? <p className="encore-note">{t('share.failed', { problem: failed })}</p> : null}
        {link ? (
          <p>
            {t('share.made')}{' '}
            <a
              className="encore-shared-address"
              href={link}
              target="_blank"
              rel="noreferrer"
              data-testid="shared-address"
            >
              {link}
            </a>{' '}
            <CopyButton t={t} value={link} testid="copy-share" />
          </p>
        ) : null}
        {links ? (
          <p className="encore-quiet" data-testid="share-count">
            {t('share.count', { n: links })}
          </p>
        ) : null}
      </div>
    </details>
  );
}
