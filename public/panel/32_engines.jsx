// The same question on another machine: shown only where several engines are configured.

function Engines({ t, run, busy, version, onAct }) {
  const { data } = useJson('/engines', version);
  const [wanted, setWanted] = useState(null);
  if (!data || data.length < 2) return null;
  const others = data.filter((engine) => engine.ready && engine.number !== run.engine_number);
  const chosen = wanted ?? others[0]?.number ?? data[0].number;
  const engine = data.find((one) => one.number === chosen);
  const start = (event) => {
    event.preventDefault();
    onAct('replay', { engine: chosen });
  };
  return (
    <form className="encore-form" onSubmit={start} data-testid="engines">
      <Choice
        label={t('engines.choose')}
        value={chosen}
        options={data.map((one) => [one.number, `${one.name} · ${one.state}`])}
        onChange={(number) => setWanted(Number(number))}
        testid="engines-choice"
      />
      <button
        type="submit"
        className="encore-button"
        disabled={busy || !engine.ready}
        data-testid="engines-replay"
      >
        {t('engines.replay')}
      </button>
      <p className="encore-quiet encore-form-note" data-testid="engines-served">
        {run.engine_number ? t('engines.served', { n: run.engine_number }) : t('engines.served.gone')}
      </p>
    </form>
  );
}
