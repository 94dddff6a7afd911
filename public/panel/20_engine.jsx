// Which engine answered this run: a strip of facts always in sight, the launch profile on demand.

function Lock({ open }) {
  return (
    <svg className="encore-icon" viewBox="0 0 24 24" aria-hidden="true">
      <rect x="5" y="11" width="14" height="9" rx="2" />
      <path d={open ? 'M8 11V7a4 4 0 0 1 7.5-2' : 'M8 11V7a4 4 0 0 1 8 0v4'} />
    </svg>
  );
}

function ProfileBadge({ t, profile }) {
  const known = profile === 'strict' || profile === 'fast';
  return (
    <span className="encore-badge" data-testid="profile-badge">
      {known ? <Lock open={profile === 'fast'} /> : null}
      {known ? t(`engine.${profile}`) : t('engine.external')}
    </span>
  );
}

function ProfileTable({ t, rows, price }) {
  return (
    <details className="encore-details" data-testid="profile-details">
      <summary>{t('profile')}</summary>
      <p className="encore-quiet" data-testid="profile-price">
        {t('profile.price')}: {price || t('profile.price.unknown')}
      </p>
      <dl className="encore-profile" data-testid="profile-table">
        {rows.map((row) => (
          <div key={row.name}>
            <dt>
              <code>
                {row.name}
                {row.value ? ` ${row.value}` : ''}
              </code>
            </dt>
            <dd>
              {row.why}{' '}
              {row.source ? <span className="encore-quiet">({row.source})</span> : null}
              {row.price ? <span className="encore-quiet"> {row.price}</span> : null}
            </dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function Engine({ t, engine }) {
  const known = engine.facts.filter((fact) => fact.known);
  const untold = engine.facts.filter((fact) => !fact.known).map((fact) => fact.label);
  return (
    <Section id="engine" title={t('engine')} aside={<ProfileBadge t={t} profile={engine.profile} />}>
      <Facts facts={known} testid="engine-facts" />
      {untold.length ? (
        <p className="encore-quiet" data-testid="engine-untold">
          {t('engine.untold', { what: untold.join(', ') })}
        </p>
      ) : null}
      {engine.profile_rows.length ? <ProfileTable t={t} rows={engine.profile_rows} price={engine.price} /> : null}
      {engine.more.length ? (
        <details className="encore-details" data-testid="engine-more">
          <summary>{t('engine.all')}</summary>
          <Facts facts={engine.more} />
        </details>
      ) : null}
    </Section>
  );
}
