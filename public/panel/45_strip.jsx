// The strip chart of a comparison: over position, how far probabilities moved, how close the two most
// likely tokens were, and the fork. The server keeps the extremes of each bucket, at most 240, so the
// drawing costs the same for 30 tokens and for 32,768. Drawn at the width it has, so that its letters
// keep their size on a phone and on a projector.

const STRIP = { left: 46, right: 14, top: 16, height: 84, axis: 22, thumb: 16 };
const SUPERSCRIPT = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
const CHARACTER = 7; // pixels, about, of an axis label's digit

function useWidth() {
  const ref = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!ref.current) return undefined; // nothing was compared, so there is no chart
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

// "0.01", "10", and "10⁻⁶" where digits would not fit.
function powerOfTen(exponent) {
  if (exponent >= -3 && exponent <= 2) return String(Number((10 ** exponent).toPrecision(1)));
  return `10${exponent < 0 ? '⁻' : ''}${[...String(Math.abs(exponent))].map((d) => SUPERSCRIPT[d]).join('')}`;
}

// A logarithmic scale that holds all `values` and at least [10^low, 10^high], from a power of ten on; its
// powers of ten are labelled, at most `most` of them.
function logScale(values, most, low = Infinity, high = -Infinity) {
  const exponents = values.map((value) => Math.log10(value));
  const from = Math.min(low, ...exponents.map(Math.floor));
  const to = Math.max(high, from + 1, ...exponents);
  const top = Math.floor(to);
  const step = Math.max(1, Math.ceil((top - from) / (most - 1)));
  const y = (value) => STRIP.top + STRIP.height * (1 - (Math.log10(value) - from) / (to - from));
  const labels = [];
  for (let exponent = from; exponent <= top; exponent += step) {
    labels.push([y(10 ** exponent), powerOfTen(exponent)]);
  }
  return { y, labels };
}

function niceTicks(total, most) {
  const rough = total / most;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? power;
  const ticks = [];
  for (let position = 0; position < total; position += Math.max(step, 1)) ticks.push(position);
  return ticks;
}

function Diamond({ x, y, filled }) {
  const size = filled ? 5.5 : 4.5;
  const d = `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`;
  return <path d={d} className={filled ? 'encore-strip-exact' : 'encore-strip-near'} />;
}

// One band: gridlines with labels, the fork and the chosen position, and what `children` draws.
function Band({ t, labels, plot, at, onPoint, footer, testid, children }) {
  const { width, middle, buckets, fork, total } = plot;
  const bottom = STRIP.top + STRIP.height;
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - box.left - STRIP.left) / (width - STRIP.left - STRIP.right);
    const position = Math.min(Math.max(Math.floor(share * total), 0), total - 1);
    onPoint(buckets.findIndex((bucket) => position < bucket.stop));
  };
  const chosen = buckets[at];
  return (
    <svg
      width={width}
      height={bottom + (footer ? STRIP.axis : 4)}
      className="encore-strip-band"
      data-testid={testid}
      onPointerMove={point}
      onPointerDown={point}
    >
      {labels.map(([y, label]) => (
        <g key={label}>
          <line x1={STRIP.left} x2={width - STRIP.right} y1={y} y2={y} className="encore-strip-grid" />
          <text x={STRIP.left - 6} y={y} dy="0.32em" textAnchor="end">
            {label}
          </text>
        </g>
      ))}
      <line
        x1={STRIP.left}
        x2={width - STRIP.right}
        y1={bottom}
        y2={bottom}
        className="encore-strip-axis"
      />
      {chosen ? (
        <rect
          x={middle(chosen) - 4}
          width={8}
          y={STRIP.top}
          height={STRIP.height}
          className="encore-strip-cursor"
        />
      ) : null}
      {children}
      {fork !== null ? (
        <g className="encore-strip-fork">
          <line x1={middle(buckets.at(-1))} x2={middle(buckets.at(-1))} y1={STRIP.top - 4} y2={bottom} />
          <text
            x={Math.min(middle(buckets.at(-1)) + 4, width - STRIP.right)}
            y={STRIP.top - 6}
            textAnchor="end"
          >
            {t('strip.fork')} {count(fork)} ▾
          </text>
        </g>
      ) : null}
      {footer
        ? footer.map((position) => (
            <text
              key={position}
              x={plot.x(position + 0.5)}
              y={bottom + 15}
              textAnchor="middle"
            >
              {count(position)}
            </text>
          ))
        : null}
    </svg>
  );
}

function bars(buckets, middle, top, bottom) {
  return buckets.map((bucket) => `M${middle(bucket).toFixed(1)} ${bottom}V${top(bucket).toFixed(1)}`).join('');
}

function DriftBand({ t, plot, ...shared }) {
  const moved = plot.buckets.filter((bucket) => bucket.drift > 0);
  if (!moved.length) return <p className="encore-quiet">{t('strip.still')}</p>;
  const { y, labels } = logScale(moved.map((bucket) => bucket.drift), 4);
  const bottom = STRIP.top + STRIP.height;
  return (
    <Band t={t} plot={plot} labels={labels} testid="strip-drift" {...shared}>
      <path
        // The smallest one stands on the lowest line: still to be seen.
        d={bars(moved, plot.middle, (bucket) => Math.min(y(bucket.drift), bottom - 2), bottom)}
        className="encore-strip-drift"
        strokeWidth={plot.stroke}
      />
    </Band>
  );
}

// Margins hang from above: the longer, the closer the two tokens were. An exact tie reaches the floor.
function MarginBand({ t, plot, nearTie, ...shared }) {
  const known = plot.buckets.filter((bucket) => bucket.margin !== null);
  if (!known.length) return <p className="encore-quiet">{t('strip.none')}</p>;
  const positive = known.filter((bucket) => bucket.margin > 0).map((bucket) => bucket.margin);
  const { y, labels } = logScale(positive, 4, -2, 1);
  const bottom = STRIP.top + STRIP.height;
  const level = (bucket) => (bucket.margin > 0 ? y(bucket.margin) : bottom);
  return (
    <Band t={t} plot={plot} labels={labels} testid="strip-margin" {...shared}>
      <rect
        x={STRIP.left}
        width={plot.width - STRIP.left - STRIP.right}
        y={y(nearTie)}
        height={bottom - y(nearTie)}
        className="encore-strip-zone"
      />
      <path
        d={bars(known, plot.middle, level, STRIP.top)}
        className="encore-strip-margin"
        strokeWidth={plot.stroke}
      />
      {known
        .filter((bucket) => bucket.near_ties)
        .map((bucket) => (
          <Diamond
            key={bucket.start}
            x={plot.middle(bucket)}
            y={level(bucket)}
            filled={bucket.exact_ties > 0}
          />
        ))}
    </Band>
  );
}

// The numbers of one bucket in words.
function reading(t, bucket, fork) {
  const single = bucket.stop - bucket.start === 1;
  const from = count(bucket.start);
  const where = single ? t('strip.at', { from }) : t('strip.range', { from, to: count(bucket.stop - 1) });
  const parts = [];
  if (bucket.start === fork) parts.push(t('strip.is_fork'));
  else if (bucket.drift === null) parts.push(t('strip.unknown'));
  else if (bucket.drift === 0) parts.push(t('strip.unmoved'));
  else {
    const at = count(bucket.drift_at);
    parts.push(t(single ? 'strip.moved' : 'strip.moved_up_to', { x: nats(bucket.drift), at }));
  }
  if (bucket.margin === null) parts.push(t('strip.margin_unknown'));
  else {
    const at = count(bucket.margin_at);
    parts.push(t(single ? 'strip.margin_is' : 'strip.margin_least', { x: nats(bucket.margin), at }));
  }
  if (single && bucket.near_ties) parts.push(t(bucket.exact_ties ? 'strip.exact' : 'strip.near'));
  else if (bucket.near_ties) parts.push(t('strip.ties', { near: bucket.near_ties, exact: bucket.exact_ties }));
  return t('strip.reading', { where, what: parts.join(' · ') });
}

// What there is to look at first: the fork, else the largest drift, else the smallest margin.
function mostTelling(buckets, fork) {
  if (fork !== null) return buckets.length - 1;
  const moved = buckets.some((bucket) => bucket.drift > 0);
  const weight = (bucket) => (moved ? (bucket.drift ?? 0) : -(bucket.margin ?? Infinity));
  return buckets.reduce((best, bucket, at) => (weight(bucket) > weight(buckets[best]) ? at : best), 0);
}

function withFork(strip, fork, margin, nearTie) {
  if (fork === null) return strip;
  const near = margin !== null && margin <= nearTie;
  const own = { drift: null, margin, margin_at: fork, near_ties: Number(near), exact_ties: Number(margin === 0) };
  return [...strip, { start: fork, stop: fork + 1, ...own }];
}

function Strip({ t, view }) {
  const { strip, fork } = view.window;
  const nearTie = view.near_tie;
  const buckets = useMemo(() => withFork(strip, fork, view.margin, nearTie), [strip, fork, view.margin, nearTie]);
  const [at, setAt] = useState(() => mostTelling(buckets, fork));
  const [ref, width] = useWidth();
  if (!strip.length) return null; // nothing before the fork, or nothing to compare
  const total = buckets.at(-1).stop;
  const inner = Math.max(width - STRIP.left - STRIP.right, 1);
  const x = (position) => STRIP.left + (inner * position) / total;
  const plot = {
    width,
    total,
    buckets,
    fork,
    x,
    middle: (bucket) => x((bucket.start + bucket.stop) / 2),
    stroke: Math.min(Math.max((inner / buckets.length) * 0.7, 1.2), 10)
  };
  const [first, last] = [plot.middle(buckets[0]), plot.middle(buckets.at(-1))];
  const longest = count(total).length * CHARACTER * 2.5;
  const footer = niceTicks(total, Math.max(2, Math.min(8, Math.floor(inner / longest))));
  const shared = { t, plot, at, onPoint: setAt };
  const unit = (
    <>
      (<abbr title={t('diff.nats')}>{t('strip.unit')}</abbr> · {t('strip.log')})
    </>
  );
  return (
    <figure className="encore-strip" data-testid="strip">
      <figcaption className="encore-heading">{t('strip')}</figcaption>
      <div ref={ref} role="img" aria-label={view.strip_summary} data-testid="strip-chart">
        {width ? (
          <>
            <p className="encore-strip-label">
              <span className="encore-strip-key encore-strip-key-drift" /> {t('strip.drift')} {unit}
            </p>
            <DriftBand {...shared} />
            <p className="encore-strip-label">
              <span className="encore-strip-key encore-strip-key-margin" /> {t('strip.margin')} {unit}
            </p>
            <MarginBand {...shared} nearTie={nearTie} footer={footer} />
            <p className="encore-strip-x">{t('strip.position')}</p>
            <p className="encore-strip-legend">
              <span>
                <span className="encore-strip-key encore-strip-key-zone" /> {t('strip.zone', { x: nats(nearTie) })}
              </span>
              <span>
                <svg width="12" height="12" aria-hidden="true">
                  <Diamond x={6} y={6} />
                </svg>{' '}
                {t('strip.near')}
              </span>
              <span>
                <svg width="12" height="12" aria-hidden="true">
                  <Diamond x={6} y={6} filled />
                </svg>{' '}
                {t('strip.exact')}
              </span>
            </p>
          </>
        ) : null}
      </div>
      <input
        type="range"
        className="encore-strip-slider"
        style={{ marginLeft: first - STRIP.thumb / 2, width: last - first + STRIP.thumb }}
        min={0}
        max={buckets.length - 1}
        value={at}
        onChange={(event) => setAt(Number(event.target.value))}
        aria-label={t('strip.choose')}
        aria-valuetext={reading(t, buckets[at], fork)}
        data-testid="strip-slider"
      />
      <p className="encore-strip-reading" data-testid="strip-reading">
        {reading(t, buckets[at], fork)}
      </p>
    </figure>
  );
}
