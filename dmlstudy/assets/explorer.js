"use strict"
// One page, no library: points, intervals and lines are little work in SVG, and 60 kB with all views; Plot with d3 alone has 500.

// ------------------------------------------------------------------ elements
const $ = id => document.getElementById(id)
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value)
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value)
  node.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false))
  return node
}
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children)
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children)

// ------------------------------------------------------------------ data
let meta, columns
async function unpack() {
  // 13 bits stand in two letters of 91, from # to ~ without <
  const [length, text] = $("data").textContent.trim().split(" "),
    letter = i => text.charCodeAt(i) - (text.charCodeAt(i) > 60 ? 36 : 35),
    bytes = new Uint8Array(+length)
  for (let i = 0, n = 0, held = 0, bits = 0; i < text.length; i += 2) {
    held = (held << 13) | (91 * letter(i) + letter(i + 1))
    for (bits += 13; bits >= 8; held &= (1 << bits) - 1) bytes[n++] = held >> (bits -= 8)
  }
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
  const buffer = await new Response(plain).arrayBuffer()
  let at = 4 + new DataView(buffer).getUint32(0, true)
  meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, at - 4)))
  columns = {}
  for (const [name, size, length] of meta.columns) {
    // 16 bits: all high bytes first, which packs better
    const part = new Uint8Array(buffer, at, size * length)
    columns[name] = size == 1 ? part : Uint16Array.from({ length }, (_, i) => 256 * part[i] + part[length + i])
    at += size * length
  }
  $("data").remove()
}
const NONE = 65535,
  ZERO = 65534
const decode = (code, [low, step, log]) => (code == NONE ? NaN : !log ? low + step * code : code == ZERO ? 0 : Math.exp(low + step * code))
const kept = {}
const remember = (key, make) => (kept[key] ??= make())

function values(metric, rule) {
  // a value for each run
  return remember(`${metric}|${rule}`, () => {
    const m = meta.metrics.findIndex(one => one.name == metric),
      r = meta.rules.findIndex(one => one.name == rule)
    const n = meta.runs,
      rules = meta.rules.length,
      out = new Float64Array(n).fill(NaN)
    if (m < 0 || r < 0) return out
    const first = m * rules * n,
      own = first + r * n,
      codes = columns.values // other rules: less the first
    for (let i = 0; i < n; i++) out[i] = decode(r ? (codes[own + i] + codes[first + i]) & NONE : codes[own + i], meta.metrics[m].scale)
    return out
  })
}
function curve(which, run) {
  // its values at the steps of the run
  const starts = remember("starts", () => {
    const out = [0]
    for (let i = 0; i < meta.runs; i++) out.push(out[i] + meta.steps[columns.steps[i]].length)
    return out
  })
  const all = starts[meta.runs],
    out = []
  for (let i = starts[run], last = 0; i < starts[run + 1]; i++) {
    last = (last + columns.curves[which * all + i]) & NONE
    out.push(decode(last, meta.curves[which].scale))
  }
  return out
}
const runsWhere = (data, test = () => true) =>
  remember(`runs|${data}`, () => {
    const d = meta.datasets.findIndex(one => one.name == data)
    return Array.from({ length: meta.runs }, (_, i) => i).filter(i => columns.dataset[i] == d)
  }).filter(test)
const methodOf = i => meta.methods[columns.method[i]]
const replicateOf = i => meta.replicates[columns.replicate[i]]
const settingOf = i => meta.settings[columns.setting[i]]
const metricOf = name => meta.metrics.find(one => one.name == name) ?? { name, title: name, percent: false }
const partOf = data => meta.datasets.find(one => one.name == data)
const titleOf = data => partOf(data)?.title ?? data
const inWords = setting => (setting ? setting.replaceAll("=", " ").replaceAll("_", " ").replaceAll(";", ",") : "as in the study")

// ------------------------------------------------------------------ statistics
const mean = x => x.reduce((a, b) => a + b, 0) / x.length
const std = x => {
  const m = mean(x)
  return Math.sqrt(x.reduce((a, b) => a + (b - m) ** 2, 0) / (x.length - 1))
}
function logGamma(x) {
  const c = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 1.208650973866179e-3, -5.395239384953e-6]
  const sum = c.reduce((a, b, i) => a + b / (x + 1 + i), 1.000000000190015)
  return (x + 0.5) * Math.log(x + 5.5) - x - 5.5 + Math.log((2.5066282746310005 * sum) / x)
}
function incompleteBeta(x, a, b) {
  // regularised, by its continued fraction (Lentz)
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a)
  const tiny = 1e-300,
    away = v => (Math.abs(v) < tiny ? tiny : v)
  let c = 1,
    d = 1 / away(1 - ((a + b) * x) / (a + 1)),
    f = d
  for (let m = 1; m < 300; m++) {
    let before = f
    for (const k of [(m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m)), (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))]) {
      d = 1 / away(1 + k * d)
      c = away(1 + k / c)
      f *= c * d
    }
    if (Math.abs(f - before) < 1e-14 * Math.abs(f)) break
  }
  return (f * Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x))) / a
}
const twoSided = (t, df) => incompleteBeta(df / (df + t * t), df / 2, 0.5) // p value of Student's t
const quantile = df =>
  remember(`t|${df}`, () => {
    // of 97.5 %
    let low = 0,
      high = 20
    for (let i = 0; i < 60; i++) {
      const t = (low + high) / 2
      twoSided(t, df) > 0.05 ? (low = t) : (high = t)
    }
    return low
  })
function interval(x) {
  // mean with Student's 95 % interval
  const m = mean(x),
    half = x.length > 1 ? (quantile(x.length - 1) * std(x)) / Math.sqrt(x.length) : NaN
  return { mean: m, low: m - half, high: m + half, half, n: x.length }
}
function anytime(x, tau = 2) {
  // half-width of the interval that holds at every look (mixture of t statistics)
  const n = x.length,
    g = 1 + n * tau * tau,
    K = (g / 0.05 ** 2) ** (1 / n)
  return n < 3 || K >= g ? NaN : (std(x) / Math.sqrt(n)) * Math.sqrt(((n - 1) * g * (K - 1)) / (g - K))
}
const densityOf = z => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI)
const PHI = (() => {
  // the normal distribution function at -8, -7.99, ..., 8, by Simpson's rule
  const steps = 1600,
    out = new Float64Array(steps + 1)
  for (let i = 0; i < steps; i++) {
    const z = -8 + i / 100
    out[i + 1] = out[i] + (densityOf(z) + 4 * densityOf(z + 0.005) + densityOf(z + 0.01)) / 600
  }
  return out
})()
function phi(z) {
  const at = (Math.min(Math.max(z, -8), 7.99) + 8) * 100,
    i = Math.floor(at)
  return PHI[i] + (at - i) * (PHI[i + 1] - PHI[i])
}
function rangeBelow(q, k) {
  // chance that k normal values span less than q
  let sum = 0
  for (let z = -8; z <= 8; z += 0.1) sum += densityOf(z) * (phi(z + q) - phi(z)) ** (k - 1)
  return Math.min(1, k * sum * 0.1)
}
const rangeQuantile = (k, df) =>
  remember(`range|${k}|${df}`, () => {
    // 95 % of the studentized range: `rangeBelow`, averaged over the spread s of a sample, s^2 df ~ chi^2
    const log = x => (df - 1) * Math.log(x) - (df * x * x) / 2,
      spreads = Array.from({ length: 480 }, (_, i) => Math.max(0, 1 - 4 / Math.sqrt(df)) + (i + 0.5) / 60 / Math.sqrt(df)),
      weights = spreads.map(x => Math.exp(log(x) - log(1))),
      sum = weights.reduce((a, b) => a + b)
    let low = 0,
      high = 100
    for (let i = 0; i < 30; i++) {
      const q = (low + high) / 2,
        below = spreads.reduce((a, x, j) => a + (weights[j] < 1e-12 ? 0 : weights[j] * rangeBelow(q * x, k)), 0) / sum
      below < 0.95 ? (low = q) : (high = q)
    }
    return low
  })
function tied(table) {
  // methods x replicates: not told apart from the best (ranks from all pairs at once, Tukey)
  const k = table.length,
    n = k && table[0].length
  if (n < 2) return table.map(() => false)
  if (k < 2) return [true]
  const means = table.map(mean),
    columns = table[0].map((_, j) => mean(table.map(row => row[j]))),
    all = mean(means),
    rest = table.flatMap((row, i) => row.map((v, j) => (v - means[i] - columns[j] + all) ** 2)),
    df = (k - 1) * (n - 1),
    length = rangeQuantile(k, df) * Math.sqrt(rest.reduce((a, b) => a + b) / df / n)
  return means.map(m => Math.max(...means) - m <= length)
}

// ------------------------------------------------------------------ state, in the address
const VIEWS = [
  ["methods", "Methods"],
  ["trials", "Trials"],
  ["pair", "Two methods"],
  ["curves", "Curves"],
  ["replicates", "Replicates"],
  ["claims", "Claims"],
]
let asked = {}
function read() {
  const [view, query] = location.hash.slice(1).split("?"),
    found = new URLSearchParams(query ?? "")
  asked = { view: VIEWS.some(([name]) => name == view) ? view : "methods", method: found.getAll("method") }
  for (const [name, value] of found) if (name != "method") asked[name] = value
}
function address(view, state) {
  const out = new URLSearchParams()
  for (const [name, value] of Object.entries(state))
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) out.append(name, one)
  const query = out.toString()
  return `#${view}${query ? "?" + query : ""}`
}
const go = change => {
  const { view, ...rest } = { ...asked, ...change }
  location.hash = address(view, rest)
}

let notices
function choose(name, options, otherwise) {
  // what is asked for if it is there, else what comes first; says so
  const wanted = asked[name]
  if (options.includes(wanted)) return wanted
  const found = options.includes(otherwise) ? otherwise : options[0]
  if (wanted)
    notices.push(`There is nothing for “${wanted}” here${found === undefined ? "" : `: this shows “${found || "as in the study"}”`}.`)
  return found
}
function select(name, label, options, value, change) {
  // options: names, [name, words], or groups of these
  const entry = one =>
    one.group ? h("optgroup", { label: one.group }, one.options.map(entry)) : h("option", { value: one[0], selected: one[0] == value }, one[1])
  const named = one => (one.group || Array.isArray(one) ? one : [one, one])
  const node = h(
    "select",
    { id: `choose-${name}`, onchange: event => go(change ? change(event.target.value) : { [name]: event.target.value }) },
    options.map(one => entry(named(one))),
  )
  return h("label", {}, label, node)
}
const dataControl = (options, value) =>
  select(
    "data",
    "Data",
    options.map(name => [name, titleOf(name)]),
    value,
    data => ({ data, setting: "", replicate: "", rule: "" }),
  )
const ruleControl = value =>
  select(
    "rule",
    "Which step counts",
    meta.rules.map(one => [one.name, one.title]),
    value,
  )
const hasValues = (runs, metric, rule) => {
  const v = values(metric, rule)
  return runs.some(i => !isNaN(v[i]))
}
function metricAndRule(data, runs, controls) {
  const rules = meta.rules.map(one => one.name).filter(rule => hasValues(runs, "recall@1", rule))
  const rule = choose("rule", rules.length ? rules : ["last"], partOf(data).rule)
  const known = meta.metrics.filter(one => hasValues(runs, one.name, rule))
  const metric = choose(
    "metric",
    known.map(one => one.name),
    "recall@1",
  )
  controls.push(
    select(
      "metric",
      "Measure",
      known.map(one => [one.name, one.title]),
      metric,
    ),
    ruleControl(rule),
  )
  return [metricOf(metric), rule]
}

// ------------------------------------------------------------------ numbers and marks
const write = (value, metric, more = 0) =>
  (!Number.isFinite(value)
    ? ""
    : metric.percent
      ? (100 * value).toFixed(1 + more)
      : Math.abs(value) >= 100
        ? value.toFixed(0)
        : value
          ? value.toPrecision(3)
          : "0"
  ).replace("-", "−")
const signed = text => (text.startsWith("-") || text.startsWith("−") ? "" : "+") + text.replace("-", "−")
const unit = metric => (metric.percent ? `${metric.title}, %` : metric.title)
const plus = (e, metric) => write(e.mean, metric) + (Number.isFinite(e.half) ? ` ± ${write(e.half, metric)}` : "")
const many = (n, word) => `${n} ${word}${n == 1 ? "" : "s"}`
const SHAPES = [
  "M-4.6,0a4.6,4.6 0 1,0 9.2,0a4.6,4.6 0 1,0 -9.2,0Z",
  "M-4.2,-4.2H4.2V4.2H-4.2Z",
  "M0,-5.4L5.2,4H-5.2Z",
  "M0,-5.8L5.8,0L0,5.8L-5.8,0Z",
  "M-4.8,-3L-3,-4.8L0,-1.8L3,-4.8L4.8,-3L1.8,0L4.8,3L3,4.8L0,1.8L-3,4.8L-4.8,3L-1.8,0Z",
  "M0,5.4L5.2,-4H-5.2Z",
  "M0,-6L1.6,-2.1L5.7,-1.9L2.5,0.8L3.5,4.9L0,2.6L-3.5,4.9L-2.5,0.8L-5.7,-1.9L-1.6,-2.1Z",
  "M-1.7,-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
]
const shape = (kind, x = 0, y = 0, size = 1, more = "") =>
  s("path", { d: SHAPES[kind % SHAPES.length], transform: `translate(${x.toFixed(1)},${y.toFixed(1)}) scale(${size})`, class: more })
const stroke = (x1, y1, x2, y2, kind) => s("line", { x1, y1, x2, y2, class: kind })
const caption = (x, y, anchor, text) => s("text", { x, y, "text-anchor": anchor, class: "quiet" }, text)
const legend = kinds =>
  h(
    "ul",
    { class: "key" },
    [...new Set(kinds)]
      .sort((a, b) => a - b)
      .map(kind =>
        h("li", {}, s("svg", { width: 14, height: 14, "aria-hidden": true, class: `mark m${kind}` }, shape(kind, 7, 7)), meta.marks[kind]),
      ),
  )

// ------------------------------------------------------------------ axes and figures
function ticks(low, high, count, whole) {
  const raw = Math.max((high - low) / Math.max(count, 2), whole ? 1 : 0),
    power = 10 ** Math.floor(Math.log10(raw))
  const step = [1, 2, 5, 10].find(k => k * power >= raw * 0.999) * power,
    out = []
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step / 1e6 ? 0 : v)
  if (out.length < 2 && !whole && count < 9) return ticks(low, high, count + 2)
  return [out, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))]
}
const width = () => Math.max(300, Math.min($("figure").clientWidth || 800, 1180))
function say(text, hint) {
  $("said").textContent = text
  $("said").className = hint ? "" : "now"
}
const tell = text => ({ onpointerenter: () => say(text), onfocus: () => say(text) })
const pen = document.createElement("canvas").getContext("2d")
function long(text, bold) {
  // pixels
  pen.font = `${bold ? "600 " : ""}13px system-ui, sans-serif`
  return pen.measureText(text).width * 1.02
}
function cut(text, pixels, bold) {
  let n = text.length
  while (n > 3 && long(n < text.length ? text.slice(0, n) + "…" : text, bold) > pixels) n--
  return n < text.length ? text.slice(0, n).trimEnd() + "…" : text
}
const short = data => (data == "all" ? "all together" : titleOf(data).split(" (")[0])
function range(numbers, far = []) {
  // of the points but far outliers, with room for intervals that are not many times longer
  let known = numbers.filter(Number.isFinite).sort((a, b) => a - b)
  const [first, third] = [0.25, 0.75].map(q => known[Math.floor(q * known.length)]),
    fence = 5 * (third - first)
  if (known.length > 9 && fence) known = known.filter(v => v > first - fence && v < third + fence)
  if (!known.length) return [0, 1]
  let low = Math.min(...known),
    high = Math.max(...known),
    room = high - low || Math.abs(high) || 1
  const more = far.filter(Number.isFinite)
  low = Math.min(low, Math.max(low - room * 0.5, Math.min(...more, low)))
  high = Math.max(high, Math.min(high + room * 0.5, Math.max(...more, high)))
  room = high - low || Math.abs(high) || 1
  return [low - 0.04 * room, high + 0.04 * room]
}

// Rows of points with intervals, on a narrow screen below their names. row: label, mean, low, high, points, mark, tone, shade, text, href, told
function dots(rows, { metric, label, zero = null, band = null, sign = false, beside = [] }) {
  const w = width(),
    narrow = w < 600,
    line = narrow ? 42 : 23,
    top = rows.length > 15 ? 26 : 6,
    text = row => row.text ?? ""
  const left = narrow ? 12 : Math.min(Math.max(...[...rows, ...beside].map(row => long(row.label, row.shade))) + 14, w * 0.42)
  const right = narrow ? 12 : Math.max(...rows.map(row => long(text(row), true))) + 14,
    bottom = top + rows.length * line
  const own = [...rows, ...beside].flatMap(row => [row.mean, ...(row.points ?? []).map(p => p.value)])
  const [low, high] = range(
    [...own, ...(zero === null ? [] : [zero]), ...(band ?? [])],
    rows.flatMap(row => [row.low, row.high]),
  )
  const at = v => left + ((v - low) / (high - low)) * (w - left - right),
    x = v => at(Math.min(Math.max(v, low), high)),
    factor = metric.percent ? 100 : 1
  const [marks, digits] = ticks(low * factor, high * factor, (w - left - right) / 70)
  const out = s("svg", { width: w, height: bottom + 46, role: "group", "aria-label": label })
  if (band) out.append(s("rect", { x: x(band[0]), y: top, width: x(band[1]) - x(band[0]), height: bottom - top, class: "band" }))
  else rows.forEach((row, i) => row.shade && out.append(s("rect", { x: 0, y: top + i * line, width: w, height: line, class: "band" })))
  for (const v of marks) {
    out.append(stroke(at(v / factor), top, at(v / factor), bottom, "grid"))
    for (const y of rows.length > 15 ? [top - 12, bottom + 13] : [bottom + 13])
      out.append(caption(at(v / factor), y, "middle", (sign && v > 0 ? "+" : "") + v.toFixed(digits).replace("-", "−")))
  }
  if (zero !== null) out.append(stroke(x(zero), top, x(zero), bottom, "axis"))
  out.append(
    s("text", { x: Math.min((left + w - right) / 2, w - long(label) / 2), y: bottom + 33, "text-anchor": "middle", class: "quiet" }, label),
  )
  rows.forEach((row, i) => {
    const middle = top + (i + 0.5) * line,
      y = narrow ? middle + 9 : middle,
      name = narrow ? middle - 9 : middle,
      room = narrow ? w - long(text(row), true) - 12 : left - 12,
      marks = s("g", { class: `mark ${row.tone ?? "m" + row.mark}` })
    if (Number.isFinite(row.low + row.high) && row.high > low && row.low < high)
      marks.append(s("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y }))
    for (const [beyond, edge, turn] of [
      [Math.min(row.mean, row.low || row.mean) < low, low, -90],
      [Math.max(row.mean, row.high || row.mean) > high, high, 90],
    ])
      if (beyond) marks.append(s("path", { d: "M0,-6L4,1H-4Z", transform: `translate(${at(edge)},${y}) rotate(${turn})` })) // goes on outside
    for (const point of row.points ?? []) marks.append(shape(row.mark, x(point.value), y, 0.55, "small"))
    if (row.mean >= low && row.mean <= high) marks.append(shape(row.mark, x(row.mean), y))
    const node = [
      s("rect", { x: 0, y: middle - line / 2, width: w, height: line, class: "hit" }),
      s(
        "text",
        { x: narrow ? 2 : left - 10, y: name, "text-anchor": narrow ? "start" : "end", class: `label${row.shade ? " bold" : ""}` },
        cut(row.label, room, row.shade),
      ),
      marks,
      s("text", { x: w - 2, y: name, "text-anchor": "end", class: row.shade ? "bold" : "" }, text(row)),
    ]
    out.append(
      row.href ? s("a", { href: row.href, "aria-label": row.told, ...tell(row.told) }, node) : s("g", row.told ? tell(row.told) : {}, node),
    )
  })
  return h("div", {}, out)
}

// Lines over an axis. line: name, mark, points [[x, y]], strong, band [[x, low, high]], href, told
function lines(all, { xLabel, yLabel, label, percent = true, height = 400, verticals = [], whole = false, joined = true, zero = false }) {
  const w = width(),
    strong = all.filter(line => line.strong && line.name)
  const right = Math.min(Math.max(20, ...strong.map(line => long(line.name) + 24)), w * 0.4),
    left = 52,
    top = verticals.length ? 14 + 17 * verticals.length : 14,
    bottom = height - 48
  const points = all.flatMap(line => line.points),
    factor = percent ? 100 : 1
  const [xLow, xHigh] = (([a, b]) => (a == b ? [a - 1, b + 1] : [a, b]))([
    Math.min(...points.map(p => p[0])),
    Math.max(...points.map(p => p[0])),
  ])
  const [low, high] = range(
    points.map(p => p[1]),
    all.flatMap(line => (line.band ?? []).flatMap(b => [b[1], b[2]])),
  )
  const margin = joined ? 0 : (xHigh - xLow) * 0.03
  const x = v => left + ((v - xLow + margin) / (xHigh - xLow + 2 * margin)) * (w - left - right),
    y = v => bottom - ((Math.min(Math.max(v, low), high) - low) / (high - low)) * (bottom - top)
  const out = s("svg", { width: w, height, role: "group", "aria-label": label })
  const [ys, digits] = ticks(low * factor, high * factor, 6),
    [xs, more] = ticks(xLow, xHigh, (w - left - right) / (whole ? 32 : 60), whole)
  for (const v of ys)
    out.append(
      stroke(left, y(v / factor), w - right, y(v / factor), "grid"),
      caption(left - 8, y(v / factor), "end", v.toFixed(digits).replace("-", "−")),
    )
  for (const v of xs) out.append(caption(x(v), bottom + 14, "middle", v.toFixed(whole ? 0 : more)))
  out.append(stroke(left, bottom, w - right, bottom, "axis"))
  if (zero && low < 0 && high > 0) out.append(stroke(left, y(0), w - right, y(0), "axis"))
  out.append(caption((left + w - right) / 2, height - 12, "middle", xLabel))
  out.append(s("text", { transform: `translate(12,${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "quiet" }, yLabel))
  verticals.forEach(([v, words], i) => {
    const near = x(v) + long(words) > w - right,
      place = near ? Math.max(x(v) - 6, long(words)) : x(v) + 6 // never beyond the left edge
    out.append(
      stroke(x(v), 12 + 17 * i, x(v), bottom, "axis dashed"),
      s("text", { x: place, y: 10 + 17 * i, "text-anchor": near ? "end" : "start", class: "quiet" }, words),
    )
  })
  const tone = line => line.tone ?? (line.strong ? `m${line.mark}` : "soft-mark")
  const path = points =>
    points
      .filter(p => Number.isFinite(p[1]))
      .map(p => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`)
      .join(" ")
  for (const line of [...all].sort((a, b) => !!a.strong - !!b.strong)) {
    const band = (line.band ?? []).filter(b => Number.isFinite(b[1])),
      own = []
    if (band.length)
      own.push(s("polygon", { class: "area", points: path([...band.map(b => [b[0], b[1]]), ...band.reverse().map(b => [b[0], b[2]])]) }))
    if (joined || line.joined)
      own.push(s("polyline", { points: path(line.points), class: [line.strong ? "" : "thin", line.dashed ? "dashed" : ""].join(" ") }))
    if (line.strong && !line.bare)
      for (const p of line.points) if (Number.isFinite(p[1])) own.push(shape(line.mark, x(p[0]), y(p[1]), joined ? 0.85 : 1.15))
    out.append(
      line.href
        ? s(
            "a",
            { href: line.href, "aria-label": line.told, tabindex: line.strong ? 0 : -1, ...tell(line.told) },
            s("g", { class: `mark ${tone(line)}` }, own),
          )
        : s("g", { class: `mark ${tone(line)}`, ...(line.told ? tell(line.told) : {}) }, own),
    )
  }
  const ends = strong
    .map(line => ({ line, p: line.points.filter(p => Number.isFinite(p[1])).at(-1) }))
    .filter(e => e.p)
    .map(e => ({ ...e, at: y(e.p[1]) }))
    .sort((a, b) => a.at - b.at)
  for (let round = 0; round < 200; round++)
    ends.forEach((end, i) => {
      // push names apart
      const over = i ? 15 - (end.at - ends[i - 1].at) : 0
      if (over > 0) {
        end.at += over / 2
        ends[i - 1].at -= over / 2
      }
      end.at = Math.min(Math.max(end.at, 8), bottom)
    })
  for (const { line, p, at } of ends)
    out.append(
      s("line", { x1: x(p[0]) + 5, y1: y(p[1]), x2: w - right + 14, y2: at, class: "grid" }),
      s("text", { x: w - right + 17, y: at }, cut(line.name, right - 18)),
    )
  return h("div", {}, out)
}
function numbers(heads, rows, words = "The same as a table") {
  // words in the first column and where a heading starts with a blank
  const left = heads.map(head => (head.startsWith(" ") ? "words" : null))
  return h(
    "details",
    {},
    h("summary", {}, words),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": words },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((head, i) => h("th", { scope: "col", class: left[i] }, head.trim())),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map(row =>
            h(
              "tr",
              {},
              row.map((cell, i) => h("td", { class: left[i] }, cell)),
            ),
          ),
        ),
      ),
    ),
  )
}

// ------------------------------------------------------------------ views
const empty = (title, lead) => ({ title, lead, controls: [], figure: [], more: [] })
const dataNames = () => meta.datasets.map(one => one.name).filter(name => runsWhere(name).length)
function byMethod(runs, v) {
  // method -> replicate -> value
  const out = new Map()
  for (const i of runs)
    if (!isNaN(v[i])) out.set(columns.method[i], (out.get(columns.method[i]) ?? new Map()).set(columns.replicate[i], v[i]))
  return out
}
function settings(runs, controls) {
  const counts = new Map()
  for (const i of runs) counts.set(settingOf(i), (counts.get(settingOf(i)) ?? 0) + 1)
  const all = [...counts.keys()].sort((a, b) => (a != "") - (b != "") || a.localeCompare(b, "en", { numeric: true }))
  const setting = choose("setting", all, "")
  if (all.length > 1)
    controls.push(
      select(
        "setting",
        "Setting",
        all.map(name => [name, `${inWords(name)} (${many(counts.get(name), "run")})`]),
        setting,
      ),
    )
  return setting
}
const nothing = () =>
  empty(
    "There are no runs yet",
    `This page draws the records of the profile “${meta.profile}”, and there are none. Make them with: dmlstudy run --profile ${meta.profile}, then make the page again.`,
  )

function methods() {
  const sets = dataNames(),
    controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0]),
    all = runsWhere(data)
  controls.push(dataControl(sets, data))
  const [metric, rule] = metricAndRule(data, all, controls),
    setting = settings(all, controls)
  const papers = [...new Set(all.map(i => methodOf(i).paper))],
    rows = choose("rows", ["all", ...papers], "all")
  if (papers.length > 1)
    controls.push(
      select("rows", "Methods of", [["all", "all"], ...papers.map(paper => [paper, paper])], rows, rows => ({ rows, method: [] })),
    )
  const picked = new Set(asked.method)
  const runs = all.filter(
    i => settingOf(i) == setting && (rows == "all" || methodOf(i).paper == rows) && (!picked.size || picked.has(methodOf(i).name)),
  )
  const table = byMethod(runs, values(metric.name, rule)),
    ids = [...table.keys()]
  const most = Math.max(...ids.map(id => table.get(id).size)),
    every = [...new Set(ids.flatMap(id => [...table.get(id).keys()]))],
    having = every.map(seed => ids.filter(id => table.get(id).has(seed)).length),
    seeds = every.filter((_, k) => having[k] == Math.max(...having)) // those that most methods share
  const whole = ids.filter(id => seeds.every(seed => table.get(id).has(seed))),
    ties = new Set()
  if (metric.better) tied(whole.map(id => seeds.map(seed => table.get(id).get(seed)))).forEach((yes, i) => yes && ties.add(whole[i]))
  const drawn = ids
    .map(id => ({ id, ...meta.methods[id], ...interval([...table.get(id).values()]) }))
    .sort((a, b) => b.mean - a.mean)
    .map(row => ({
      ...row,
      label: row.name,
      shade: ties.has(row.id),
      text: plus(row, metric),
      href: address("replicates", { data, metric: metric.name, rule, setting, method: [row.name] }),
      told: `${row.name}: ${plus(row, metric)}, ${many(row.n, "replicate")}${ties.has(row.id) ? ", among the best" : ""}. Open its replicates.`,
    }))
  const best = drawn.filter(row => row.shade),
    fewer = ids.length - whole.length
  const title = !drawn.length
    ? "No run has this measure"
    : best.length > 1
      ? `${best.length} of ${drawn.length} methods cannot be told from the best`
      : best.length
        ? `${best[0].name} is ahead of ${drawn.length > 2 ? `the other ${drawn.length - 1} methods` : "the other method"}`
        : many(drawn.length, "method") + " with their intervals"
  const lead = !drawn.length
    ? "Choose another measure, rule or setting above."
    : `Mean over replicates and its 95 % interval${most < 2 ? ", which needs a second replicate" : ""}. ` +
      (best.length
        ? "Shaded, and in bold: not told from the best by paired tests with correction for all rows. "
        : most < 2
          ? "With one replicate no method can be called better than another. "
          : "") +
      (best.length && seeds.length < most ? `Tested on the ${seeds.length} replicates that ${fewer ? "most" : "all"} methods share; the means are over all that each has. ` : "") +
      (fewer && best.length ? `${many(fewer, "method")} without these ${fewer == 1 ? "is" : "are"} not tested. ` : "") +
      (most == 2 ? "Two replicates make very wide intervals; arrows show that they go on." : "")
  const names = [...new Set(all.filter(i => settingOf(i) == setting).map(i => methodOf(i).name))].sort((a, b) => a.localeCompare(b, "en"))
  const boxes = h(
    "details",
    { open: picked.size > 0 },
    h("summary", {}, picked.size ? `Only ${many(picked.size, "chosen method")}` : "Show only some methods"),
    h(
      "div",
      { class: "key" },
      names.map(name =>
        h(
          "span",
          {},
          h("input", {
            type: "checkbox",
            id: `box-${name}`,
            checked: picked.has(name),
            onchange: event => {
              const now = new Set(picked)
              event.target.checked ? now.add(name) : now.delete(name)
              go({ method: [...now] })
            },
          }),
          " ",
          h("span", {}, name),
        ),
      ),
    ),
    picked.size > 0 && h("a", { href: address("methods", { ...asked, view: null, method: [] }) }, "Show all"),
  )
  for (const input of boxes.querySelectorAll("input")) input.setAttribute("aria-label", input.id.slice(4))
  return {
    title,
    lead,
    controls,
    figure: drawn.length ? [legend(drawn.map(row => row.mark)), dots(drawn, { metric, label: `${unit(metric)}, ${short(data)}` })] : [],
    more: [
      boxes,
      numbers(
        ["Method", "Mean", "From", "To", "Replicates", " Among the best"],
        drawn.map(row => [
          row.name,
          write(row.mean, metric, 1),
          write(row.low, metric, 1),
          write(row.high, metric, 1),
          row.n,
          row.shade ? "yes" : "",
        ]),
      ),
    ],
  }
}

function expectedBest(scores) {
  // of k trials drawn from those made, without repetition, k = 1 to n
  const up = [...scores].sort((a, b) => a - b),
    n = up.length,
    out = []
  for (let k = 1; k <= n; k++) {
    // share of the draws whose best is the i-th: C(i-1, k-1) / C(n, k)
    let share = k / n,
      sum = 0
    for (let i = n; i >= k; i--) {
      sum += share * up[i - 1]
      share *= i > 1 ? (i - k) / (i - 1) : 0
    }
    out.push([k, sum])
  }
  return out
}
function trials() {
  const sets = [...new Set(meta.trials.map(one => one.dataset))],
    controls = []
  if (!sets.length)
    return empty(
      "No search is recorded",
      `The figure shows how good the best of k trials is expected to be. It needs the records of a search: make them with dmlstudy run --profile ${meta.profile} -p experiments search, then make the page again.`,
    )
  const data = choose("data", sets, sets[0]),
    all = meta.trials.filter(one => one.dataset == data)
  const papers = [...new Set(all.map(one => meta.methods[one.method].paper))],
    rows = choose("rows", ["all", ...papers], "all")
  controls.push(dataControl(sets, data))
  if (papers.length > 1)
    controls.push(
      select("rows", "Methods of", [["all", "all"], ...papers.map(paper => [paper, paper])], rows, rows => ({ rows, method: [] })),
    )
  const shown = all
    .filter(one => rows == "all" || meta.methods[one.method].paper == rows)
    .map(one => ({ ...meta.methods[one.method], n: one.scores.length, points: expectedBest(one.scores) }))
    .sort((a, b) => b.points.at(-1)[1] - a.points.at(-1)[1])
  const named = asked.method.filter(name => shown.some(one => one.name == name)),
    first = shown.filter((one, i) => shown.findIndex(other => other.mark == one.mark) == i)
  const strong = new Set(named.length ? named : first.map(one => one.name)),
    most = Math.max(...shown.map(one => one.n))
  controls.push(
    select(
      "method",
      "Add or remove a method",
      [
        ["", "choose …"],
        ...shown.map(one => [one.name, (strong.has(one.name) ? "✓ " : "") + one.name]).sort((a, b) => a[0].localeCompare(b[0], "en")),
      ],
      "",
      name => {
        const now = new Set(strong)
        now.has(name) ? now.delete(name) : now.add(name)
        return { method: [...now] }
      },
    ),
  )
  const drawn = shown.map(one => ({
    ...one,
    strong: strong.has(one.name),
    href: address("trials", { data, rows, method: [...new Set([...strong, one.name])] }),
    told: `${one.name}: ${(100 * one.points[0][1]).toFixed(1)} with one trial, ${(100 * one.points.at(-1)[1]).toFixed(1)} with ${one.n}`,
  }))
  const gain = mean(shown.map(one => one.points.at(-1)[1] - one.points[0][1]))
  return {
    title: `From one trial to ${most > Math.min(...shown.map(one => one.n)) ? "all" : most}, the score gains ${(100 * gain).toFixed(1)} points on average`,
    controls,
    lead:
      "Expected score of the best of k trials drawn from those that were made. The score is the mean of recall at 1 and MAP@R on held-out training classes, so the best is picked and judged on the same classes. " +
      (named.length ? "" : "The best method of each kind is named. ") +
      "Thin lines: the other methods. A line that rises little needs little tuning.",
    figure: [
      legend(drawn.filter(one => one.strong).map(one => one.mark)),
      lines(drawn, {
        xLabel: "number of trials",
        yLabel: "expected best score, %",
        label: `Expected best score against the number of trials, ${titleOf(data)}`,
        whole: true,
      }),
    ],
    more: [
      numbers(
        ["Method", "Trials", "One trial", "Three", "All"],
        shown.map(one => [one.name, one.n, ...[0, 2, one.n - 1].map(k => (one.points[k] ? (100 * one.points[k][1]).toFixed(1) : ""))]),
      ),
    ],
  }
}

function classShares(data, rule, method) {
  // recall at 1 of each class, mean over replicates; null: not recorded
  const d = partOf(data),
    m = meta.methods.findIndex(one => one.name == method),
    row = d.rows.findIndex(one => one[0] == m && one[1] == rule),
    codes = columns[`classes ${data}`]
  return row < 0 ? null : Float64Array.from({ length: d.classes }, (_, k) => ((codes[(row + 1) * d.classes + k] + codes[k]) & 255) / 100)
}
const sheetOf = data => meta.sheets[partOf(data).sheet]
const sheetAddress = data =>
  remember(`sheet|${partOf(data).sheet}`, () => URL.createObjectURL(new Blob([columns[`pictures ${partOf(data).sheet}`]], { type: "image/webp" })))
function picture(data, k, size) {
  const sheet = sheetOf(data)
  if (!sheet) return h("span", { class: "picture", "aria-hidden": true }, k + 1)
  const node = h("span", { class: "picture", role: "img", "aria-label": `an image of class ${k + 1}` })
  Object.assign(node.style, {
    backgroundImage: `url(${sheetAddress(data)})`,
    backgroundSize: `${sheet.columns * size}px auto`,
    backgroundPosition: `-${(k % sheet.columns) * size}px -${Math.floor(k / sheet.columns) * size}px`,
    width: `${size}px`,
    height: `${size}px`,
  })
  return node
}
const nameOfClass = (data, k) => {
  const text = sheetOf(data)?.names[k].replace(/^U\+[0-9A-F]+ /, "") ?? `class ${k + 1}`
  return (text[0].toUpperCase() + text.slice(1)).replaceAll("_", " ").replace("/", " ")
}
function pair() {
  const methodsOf = d => [...new Set(d.rows.map(row => row[0]))],
    sets = meta.datasets.filter(one => methodsOf(one).length > 1).map(one => one.name),
    controls = []
  if (!sets.length)
    return empty(
      "Classes cannot be compared yet",
      "Two methods are compared by class where the records hold the hits of each test class, for at least two methods of one data set. Train a second method to see this.",
    )
  const data = choose(
      "data",
      sets,
      sets.find(name => sheetOf(name)),
    ),
    d = partOf(data),
    sheet = sheetOf(data)
  const rules = meta.rules.map(one => one.name).filter(rule => d.rows.some(row => row[1] == rule))
  const rule = choose("rule", rules, d.rule),
    all = methodsOf(d)
      .map(m => meta.methods[m].name)
      .filter(name => classShares(data, rule, name))
  const names = [...all].sort((a, b) => a.localeCompare(b, "en")),
    recall = values("recall@1", rule),
    runs = runsWhere(data, i => settingOf(i) == "")
  const ranked = [...byMethod(runs, recall)]
    .map(([id, own]) => [meta.methods[id].name, mean([...own.values()])])
    .sort((a, b) => b[1] - a[1])
    .map(one => one[0])
    .filter(name => names.includes(name))
  for (const name of asked.method) if (!names.includes(name)) notices.push(`There is nothing for “${name}” here.`)
  const [askedA, askedB] = asked.method.filter(name => names.includes(name)),
    A = askedA ?? ranked[0],
    B = askedB && askedB != A ? askedB : ranked.find(name => name != A)
  controls.push(
    dataControl(sets, data),
    select("method-a", "First method", names, A, name => ({ method: [name, name == B ? A : B] })),
    select("method-b", "Second method", names, B, name => ({ method: [name == A ? B : A, name] })),
    select(
      "rule",
      "Which step counts",
      rules.map(name => [name, meta.rules.find(one => one.name == name).title]),
      rule,
    ),
  )
  const a = classShares(data, rule, A),
    b = classShares(data, rule, B),
    order = Array.from(a, (_, k) => k).sort((k, l) => a[l] - b[l] - (a[k] - b[k]) || k - l)
  const ahead = order.filter(k => a[k] > b[k] + 1e-9).length,
    behind = order.filter(k => b[k] > a[k] + 1e-9).length,
    own = name => byMethod(runs, recall).get(meta.methods.findIndex(one => one.name == name)) ?? new Map()
  const shared = [...own(A)].filter(([seed]) => own(B).has(seed)).map(([seed, v]) => v - own(B).get(seed)),
    effect = shared.length ? interval(shared) : null,
    points = { percent: true }
  const w = Math.min(width(), 560),
    pad = 52,
    side = w - pad - 20,
    from = Math.floor(10 * Math.max(0, Math.min(...a, ...b) - 0.02)) / 10
  const at = v => pad + ((v - from) / (1 - from)) * side,
    up = v => 12 + ((1 - v) / (1 - from)) * side
  const plot = s("svg", { width: w, height: side + 62, role: "group", "aria-label": `Recall at 1 of each class: ${A} across, ${B} up` })
  for (const percent of ticks(100 * from, 100, 5)[0]) {
    const v = percent / 100
    plot.append(
      stroke(at(v), up(from), at(v), up(1), "grid"),
      stroke(at(from), up(v), at(1), up(v), "grid"),
      caption(at(v), up(from) + 14, "middle", percent),
      caption(pad - 8, up(v), "end", percent),
    )
  }
  plot.append(
    s("line", { x1: at(from), y1: up(from), x2: at(1), y2: up(1), class: "axis dashed" }),
    caption(pad + side / 2, side + 46, "middle", cut(`${A}: recall at 1 of the class, %`, side)),
    s(
      "text",
      { transform: `translate(12,${12 + side / 2}) rotate(-90)`, "text-anchor": "middle", class: "quiet" },
      cut(`${B}: recall at 1, %`, side),
    ),
  )
  const said = k => `${nameOfClass(data, k)}: ${A} ${(100 * a[k]).toFixed(0)} %, ${B} ${(100 * b[k]).toFixed(0)} %`,
    size = order.length <= 130 && sheet ? (w > 420 ? 20 : 14) : 0
  for (const k of order)
    plot.append(
      size
        ? s(
            "svg",
            {
              x: at(a[k]) - size / 2,
              y: up(b[k]) - size / 2,
              width: size,
              height: size,
              viewBox: `${(k % sheet.columns) * sheet.side} ${Math.floor(k / sheet.columns) * sheet.side} ${sheet.side} ${sheet.side}`,
              ...tell(said(k)),
            },
            s("image", {
              href: sheetAddress(data),
              width: sheet.columns * sheet.side,
              height: Math.ceil(order.length / sheet.columns) * sheet.side,
            }),
          )
        : s("g", { class: "ink", opacity: 0.45, ...tell(said(k)) }, shape(0, at(a[k]), up(b[k]), order.length > 200 ? 0.6 : 0.9)),
    )
  const digits = Math.max(...order.map(k => Math.abs(a[k] - b[k]))) < 0.1 ? 1 : 0
  const cards = some =>
    h(
      "ul",
      { class: "cards" },
      some.map(k =>
        h(
          "li",
          {},
          picture(data, k, 52),
          h("span", { class: "name-of" }, h("strong", {}, `${signed((100 * (a[k] - b[k])).toFixed(digits))} points`), nameOfClass(data, k)),
        ),
      ),
    )
  const block = (winner, other, some) => [
    h("h2", {}, `Classes where ${winner} is ahead most`),
    some.length ? cards(some) : h("p", {}, `None: ${other} is ahead or equal on all.`),
  ]
  return {
    title: `${A} is better on ${ahead} classes, ${B} on ${behind}${order.length > ahead + behind ? `, alike on ${order.length - ahead - behind}` : ""}`,
    controls,
    lead:
      (effect
        ? `Over all classes, the first method minus the second is ${signed(write(effect.mean, points, 1))}${effect.n > 1 ? ` (95 % interval ${signed(write(effect.low, points, 1))} to ${signed(write(effect.high, points, 1))})` : ""} points of recall at 1, over ${many(effect.n, "shared replicate")}. `
        : "") +
      `Each ${size ? "picture" : "point"} is a test class: below the diagonal the first method is better. Shares are means over replicates, to a point; with few images a class, single differences are mostly chance.`,
    figure: [
      h(
        "div",
        { class: "two" },
        h("div", {}, plot),
        h(
          "div",
          {},
          block(A, B, order.filter(k => a[k] > b[k] + 1e-9).slice(0, 8)),
          block(
            B,
            A,
            order
              .filter(k => b[k] > a[k] + 1e-9)
              .slice(-8)
              .reverse(),
          ),
        ),
      ),
    ],
    more: [
      numbers(
        ["Class", A, B, "Difference"],
        order.map(k => [nameOfClass(data, k), (100 * a[k]).toFixed(1), (100 * b[k]).toFixed(1), signed((100 * (a[k] - b[k])).toFixed(1))]),
      ),
    ],
  }
}

function methodAndSetting(data, controls, name = asked.method[0]) {
  const all = runsWhere(data),
    names = [...new Set(all.map(i => methodOf(i).name))].sort((a, b) => a.localeCompare(b, "en"))
  if (name && !names.includes(name)) notices.push(`There is nothing for “${name}” here.`)
  const method = names.includes(name)
    ? name
    : (names.find(one => all.some(i => methodOf(i).name == one && settingOf(i) == "" && meta.steps[columns.steps[i]].length > 1)) ??
      names[0])
  controls.push(
    dataControl(data.sets ?? dataNames(), data),
    select("method", "Method", names, method, name => ({ method: [name], setting: "", replicate: "" })),
  )
  const own = all.filter(i => methodOf(i).name == method),
    setting = settings(own, controls)
  return [method, setting, own.filter(i => settingOf(i) == setting)]
}
function curves() {
  const sets = dataNames(),
    controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0]),
    [method, setting, runs] = methodAndSetting(data, controls)
  const known = [...new Set(meta.curves.filter((_, c) => runs.some(i => curve(c, i).some(Number.isFinite))).map(one => one.metric))]
  if (!known.length)
    return { ...empty("This run has no curves", "Its records hold no evaluations. Choose another method or setting."), controls }
  const metric = metricOf(choose("metric", known, "recall@1")),
    replicates = runs.map(replicateOf),
    replicate = choose("replicate", replicates, replicates[0]),
    run = runs[replicates.indexOf(replicate)]
  controls.push(
    select(
      "metric",
      "Measure",
      known.map(name => [name, metricOf(name).title]),
      metric.name,
    ),
    select("replicate", "Replicate", replicates, replicate),
  )
  const names = { test: "test classes", validation: "held-out classes", train: "training classes" },
    there = Object.keys(names).filter(part =>
      meta.curves.some((one, c) => one.part == part && one.metric == metric.name && runs.some(i => curve(c, i).some(Number.isFinite))),
    ),
    part = choose("part", ["all", ...there], "all"),
    parts = Object.fromEntries(Object.entries(names).filter(([name]) => part == "all" || name == part)),
    steps = meta.steps[columns.steps[run]],
    all = []
  meta.curves.forEach(
    (one, c) =>
      one.metric == metric.name &&
      Object.keys(parts).forEach(part => {
        if (one.part != part) return
        for (const i of runs) {
          const points = curve(c, i)
            .map((v, k) => [meta.steps[columns.steps[i]][k], v])
            .filter(p => Number.isFinite(p[1]))
          if (points.length)
            all.push({
              name: parts[part],
              mark: { test: 0, validation: 1, train: 3 }[part],
              tone: i == run ? "ink-mark" : "soft-mark",
              dashed: part == "validation",
              points,
              strong: i == run,
              href: i != run && address("curves", { ...asked, view: null, data, method: [method], setting, replicate: replicateOf(i) }),
              told: `${parts[part]}, ${replicateOf(i)}: ${write(points[0][1], metric)} at step ${points[0][0]}, ${write(points.at(-1)[1], metric)} at step ${points.at(-1)[0]}`,
            })
        }
      }),
  )
  if (there.length > 1) controls.push(select("part", "Classes", [["all", "all"], ...there.map(part => [part, names[part]])], part))
  const at = new Map()
  for (const rule of meta.rules) {
    const step = Math.round(values("step", rule.name)[run])
    if (Number.isFinite(step)) at.set(step, [...(at.get(step) ?? []), rule.short])
  }
  const test = all.find(line => line.strong && line.name == names.test),
    peak = test && test.points.reduce((a, b) => (b[1] > a[1] ? b : a))
  const title =
    steps.length < 2
      ? `${method}: nothing is trained, so there is one point`
      : peak && metric.better
        ? `${method} on test classes: best at step ${peak[0]} of ${steps.at(-1)}`
        : `${method}: ${metric.title} during training`
  return {
    title,
    controls,
    lead: `${metric.title} at each evaluation of one run, ${replicate}, setting: ${inWords(setting)}. ${runs.length > 1 ? "Thin lines: the other replicates. " : ""}${at.size ? "Dashed: the step that each rule reads." : ""}`,
    figure: all.length
      ? [
          lines(all, {
            xLabel: "training steps",
            yLabel: unit(metric),
            label: `${metric.title} against training steps, ${method}, ${titleOf(data)}`,
            percent: metric.percent,
            verticals: [...at].sort((a, b) => a[0] - b[0]).map(([step, rules]) => [step, rules.join(", ")]),
          }),
        ]
      : [],
    more: [
      numbers(
        ["Step", ...all.filter(line => line.strong).map(line => line.name)],
        steps.map(step => [step, ...all.filter(line => line.strong).map(line => write(line.points.find(p => p[0] == step)?.[1], metric))]),
      ),
      h(
        "p",
        {},
        h("a", { href: address("replicates", { data, method: [method], setting, metric: metric.name }) }, "All replicates of this method"),
      ),
    ],
  }
}

const soFar = x => x.map((_, k) => ({ k: k + 1, ...interval(x.slice(0, k + 1)), wide: anytime(x.slice(0, k + 1)) }))
function sequence(rows, so, { mark, tone, what, looked, verticals, ...axes }) {
  // values in the order in which they came; with `looked` also the interval that holds at every look
  const more = { mark, tone, strong: true }
  const all = [
    { ...more, name: "", points: rows.map((row, k) => [k + 1, row.value]), told: `${what}: ${many(rows.length, "replicate")}` },
    { ...more, name: "mean so far", points: so.map(e => [e.k, e.mean]), bare: true, joined: true, band: so.map(e => [e.k, e.low, e.high]) },
  ]
  for (const side of looked ? [-1, 1] : [])
    all.push({
      ...more,
      name: side > 0 ? "at every look" : "",
      dashed: true,
      joined: true,
      bare: true,
      points: so.map(e => [e.k, e.mean + side * e.wide]).filter(p => Number.isFinite(p[1])),
    })
  return lines(
    all.filter(line => line.points.length),
    { xLabel: "replicates", whole: true, joined: false, height: 380, verticals: verticals ?? [], ...axes },
  )
}

function replicates() {
  const sets = dataNames(),
    controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0]),
    [method, setting, own] = methodAndSetting(data, controls)
  const others = [...new Set(runsWhere(data, i => settingOf(i) == setting).map(i => methodOf(i).name))]
      .filter(name => name != method)
      .sort((a, b) => a.localeCompare(b, "en")),
    other = others.includes(asked.method[1]) ? asked.method[1] : ""
  if (asked.method[1] && !other) notices.push(`“${asked.method[1]}” has no runs with this setting.`)
  controls.push(
    select("other", "Less another method", [["", "none"], ...others.map(name => [name, name])], other, name => ({
      method: name ? [method, name] : [method],
    })),
  )
  const [metric, rule] = metricAndRule(data, own, controls),
    v = values(metric.name, rule),
    second = new Map(
      runsWhere(data, i => other && methodOf(i).name == other && settingOf(i) == setting).map(i => [columns.replicate[i], v[i]]),
    )
  const rows = own
      .map(i => ({ name: replicateOf(i), run: i, value: other ? v[i] - (second.get(columns.replicate[i]) ?? NaN) : v[i] }))
      .filter(row => Number.isFinite(row.value)),
    x = rows.map(row => row.value)
  if (!rows.length)
    return {
      ...empty(
        "No replicate has this",
        other ? `${method} and ${other} share no replicate: train both with the same seeds or replicates.` : "Choose another measure or rule.",
      ),
      controls,
    }
  const so = soFar(x),
    last = so.at(-1),
    what = other ? `${method} less ${other}` : method,
    mark = meta.methods.find(one => one.name == method).mark
  const text = e =>
    (other ? signed(write(e.mean, metric, 1)) : write(e.mean, metric, 1)) +
    (Number.isFinite(e.half) ? ` ± ${write(e.half, metric, 1)}` : "")
  const zero = other && last.low < 0 && last.high > 0
  const title =
    x.length < 2
      ? `${what}: one replicate, so no interval yet`
      : other
        ? `${what}: ${text(last)}${metric.percent ? " points" : ""}${zero ? ", which may be chance" : ""}`
        : `${what}: ${text(last)} after ${many(x.length, "replicate")}`
  return {
    title,
    controls,
    lead: `Each mark is a replicate, in order. The line is the mean of those so far, the band its 95 % interval for a number of replicates that was fixed before. ${Number.isFinite(last.wide) ? "Dashed: the interval that holds even if one looks after each replicate and stops when pleased. " : "An interval that holds at every look needs four or five replicates. "}${x.length == 1 ? "Train more seeds to see how much this value varies." : ""}`,
    figure: [
      sequence(rows, so, {
        mark,
        what,
        looked: true,
        yLabel: (other ? "difference, " : "") + (metric.percent ? (other ? "points" : unit(metric)) : metric.title),
        label: `${metric.title} by replicate, ${what}, ${titleOf(data)}`,
        percent: metric.percent,
        zero: !!other,
      }),
    ],
    more: [
      numbers(
        ["Replicate", "Value", "Mean so far", "From", "To", " Curves"],
        rows.map((row, k) => [
          row.name,
          write(row.value, metric, 1),
          write(so[k].mean, metric, 1),
          write(so[k].low, metric, 1),
          write(so[k].high, metric, 1),
          h("a", { href: address("curves", { data, method: [method], setting, replicate: row.name }) }, "its curves"),
        ]),
      ),
    ],
  }
}

const VERDICTS = { reproduced: "✓", "not reproduced": "○", contradicted: "✕", inconclusive: "?", "not asked": "–" }
const LATER = { "above delta": "✓", "positive, size open": "+", negligible: "○", reversed: "✕", open: "?" } // of later ledgers
const LEDGERS = {
  2: "Second ledger: one rate for all",
  3: "Third ledger: tuned and stopped",
  4: "Fourth ledger: objectives against contrastive and softmax",
  5: "Fifth ledger: what decides whether SEC helps",
  6: "Sixth ledger: what is varied beside the loss",
}
const verdict = text => h("span", { class: "verdict", role: "img", title: text, "aria-label": text }, VERDICTS[text] ?? LATER[text] ?? text)
const claimText = (value, unit) =>
  !Number.isFinite(value)
    ? ""
    : unit == "factor"
      ? `× ${(10 ** value).toPrecision(2)}`
      : signed(unit == "points" ? (100 * value).toFixed(1) : value.toFixed(2))
const about = { "+": "It claims an effect above", "-": "It claims an effect below", 0: "It claims no effect: within" }
const inWordsLater = text => (text == "above delta" ? "above its size of interest" : text)
const effectOf = (id, of) => {
  const all = meta.ledgers.flatMap(ledger => ledger.effects).filter(e => e.id == id)
  return all.find(e => e.of == of) ?? all[0]
}
function claimMenu(id) {
  const first = meta.claims.map(one => [one.id, `${one.id}: ${one.statement}`])
  const later = meta.ledgers.map(ledger => ({
    group: LEDGERS[ledger.version],
    options: [...new Map(ledger.effects.map(e => [e.id, `${e.id}: ${e.statement}`]))],
  }))
  const options = [["", "all claims"], ...later, ...(later.length && first.length ? [{ group: "First ledger", options: first }] : first)]
  return select("claim", "Claim", options, id, claim => ({ claim, data: "", of: "" }))
}
function allClaims(menu) {
  const count = (symbols, verdicts) =>
    Object.keys(symbols)
      .map(name => [name, verdicts.filter(one => one == name).length])
      .filter(([, n]) => n)
  const key = (counts, words = text => text) =>
    h(
      "ul",
      { class: "key" },
      counts.map(([name, n]) => h("li", {}, verdict(name), ` ${words(name)} (${n})`)),
    )
  const line = (id, statement, marks) =>
    h("li", {}, h("a", { href: address("claims", { claim: id }) }, h("b", {}, id), h("span", {}, statement), h("span", { class: "marks" }, marks)))
  const later = meta.ledgers.map(ledger => {
    const ids = [...new Set(ledger.effects.map(e => e.id))]
    return [
      h("h2", {}, LEDGERS[ledger.version]),
      h(
        "ul",
        { class: "claims" },
        ids.map(id => {
          const own = ledger.effects.filter(e => e.id == id),
            counts = count(
              LATER,
              own.map(e => e.verdict),
            )
          return line(
            id,
            own[0].statement,
            counts.map(([name, n]) => h("span", {}, verdict(name), own.length > 1 ? ` ${n}` : "")),
          )
        }),
      ),
    ]
  })
  const all = [...new Set(meta.claims.flatMap(one => one.results).map(r => r.dataset))].sort((a, b) => (a == "all") - (b == "all")),
    papers = [...new Set(meta.claims.map(one => one.paper))]
  const first = papers.map(paper => [
    h("h2", {}, `First ledger: ${paper}`),
    h(
      "ul",
      { class: "claims" },
      meta.claims
        .filter(one => one.paper == paper)
        .map(one =>
          line(
            one.id,
            one.statement,
            all.map(name => one.results.find(r => r.dataset == name)).map(r => (r ? verdict(r.verdict) : h("span", { class: "verdict" }))),
          ),
        ),
    ),
  ])
  const effects = meta.ledgers.flatMap(ledger => ledger.effects),
    counts = count(
      LATER,
      effects.map(e => e.verdict),
    ),
    before = count(
      VERDICTS,
      meta.claims.flatMap(one => one.results).map(r => r.verdict),
    ),
    n = (counts, name) => counts.find(one => one[0] == name)?.[1] ?? 0
  return {
    title: effects.length
      ? `Of ${effects.length} effects ${n(counts, "above delta")} are above their size of interest, ${n(counts, "reversed")} reversed`
      : `${n(before, "reproduced")} verdicts of ${before.reduce((a, b) => a + b[1], 0)} are “reproduced”, ${n(before, "contradicted")} “contradicted”`,
    controls: [menu],
    lead:
      (effects.length
        ? "Each claim was written down before the replicates were drawn that decide it; the numbers count its effects, mostly one a loss, by verdict. "
        : "") +
      (all.length ? `In the first ledger a mark is the verdict on one data set, from left to right: ${all.map(short).join(", ")}. ` : "") +
      "Open a claim for its effects and all runs behind them.",
    figure: [effects.length ? [key(counts, inWordsLater), later] : [], before.length ? [h("h2", {}, "First ledger"), key(before), first] : []],
    more: [],
  }
}
function laterClaim(ledger, id, menu) {
  const effects = ledger.effects.filter(e => e.id == id),
    names = effects.map(e => e.of),
    e = effects[names.indexOf(choose("of", names, names[0]))],
    points = e.kind == "gain" && e.scale == 100,
    what = { mean: "mean over losses", every: "the smallest of all losses", all: "all objectives" }
  const digits = v => signed(v.toFixed(2)),
    text = e => (e.look ? `${digits(e.effect)} [${digits(e.low)}, ${digits(e.high)}]` : "no replicates yet"),
    least = e.over == "every" && e.pairs.map((_, j) => mean(e.found.slice(0, e.look).map(row => row[j]))),
    worst = least && least.indexOf(Math.min(...least)),
    series = e.found.map(v => (e.over == "every" ? v[worst] : Array.isArray(v) ? mean(v) : v))
  const rows = series.map((value, k) => ({ name: `replicate ${e.first + k}`, value })),
    so = soFar(series),
    mark = meta.methods.find(one => one.name == e.pairs[0]?.[0].split(" | ")[0])?.mark ?? 0
  const drawn = effects
    .filter(one => one.look)
    .sort((a, b) => (effects.length > 10 ? b.effect - a.effect : 0))
    .map(one => ({
      label: `${LATER[one.verdict]} ${one.of}`,
      mean: one.effect,
      low: one.low,
      high: one.high,
      mark: 0,
      tone: "ink-mark",
      shade: one == e,
      text: text(one),
      href: address("claims", { claim: id, of: one.of }),
      told: `${what[one.of] ?? one.of}: ${inWordsLater(one.verdict)}, ${text(one)}, ${many(one.look, "replicate")}`,
    }))
  const metric = metricOf(e.metric == "lost" ? "recall@1" : e.metric),
    at = (view, pair, setting) =>
      address(view, { data: ledger.part, method: pair, metric: metric.name, rule: e.metric == "lost" ? "last" : e.rule, setting })
  const links = (pair, j) => {
    // a row is a method, or METHOD | SETTING
    const sides = pair.map(row => row.split(" | ")),
      [[a, own], [b, others]] = sides,
      together = own == others && a != b
    const way = (methods, setting, words) => h("a", { href: at("replicates", methods, setting) }, words),
      ways = together
        ? (own ? [own] : e.settings).map(setting => way([a, b], setting, setting ? inWords(setting) : "its replicates"))
        : sides.map(([method, setting], k) => way([method], setting ?? e.settings[0], pair[k]))
    return [
      pair.join(" less "),
      digits(e.found.length && Array.isArray(e.found[0]) ? mean(e.found.slice(0, e.look || undefined).map(row => row[j])) : mean(series)),
      ways.map((link, k) => [k ? ", " : "", link]),
      together && !own && partOf(ledger.part).rows.length ? h("a", { href: address("pair", { data: ledger.part, method: [a, b] }) }, "by class") : "",
    ]
  }
  const rule = meta.rules.find(one => one.name == e.rule)?.title ?? e.rule,
    u = points ? " points" : ""
  const asking =
    (e.kind == "correlation"
      ? `${metric.title} with ${metricOf(e.with).title}, over objectives`
      : e.metric == "lost"
        ? "Recall at 1 lost from the best evaluation to the last"
        : `${metric.title}, ${rule}`) +
    (e.rates ? (e.rates == "own" ? ", each arm at its own rate" : ", mean over equal rates") : "") +
    (e.less ? ", and what is gained more than in another setting" : "")
  return {
    title: `“${e.statement}”: ${e.look ? inWordsLater(e.verdict) : "not asked yet"} (${what[e.of] ?? e.of})`,
    controls: [
      menu,
      names.length > 1 &&
        select(
          "of",
          "Effect",
          names.map(name => [name, what[name] ?? name]),
          e.of,
        ),
    ],
    lead: `${LEDGERS[ledger.version]}. ${e.paper}: ${e.source.replace(/\?$/, "")}. ${asking}; smallest size of interest ${e.delta}${u}. ${e.look ? `Here: ${text(e)}${u}, after ${e.look} of at most ${many(ledger.cap, "replicate")}.` : "No replicate was drawn yet."}${e.new_low === null ? "" : ` For new characters, too: [${digits(e.new_low)}, ${digits(e.new_high)}].`}${e.printed === null ? "" : ` In print: ${digits(e.printed)}${e.beside ? ` (${e.beside})` : ""}.`}`,
    figure: [
      drawn.length
        ? [
            dots(drawn, {
              metric: { percent: false },
              zero: 0,
              sign: true,
              band: [-e.delta, e.delta],
              label: `effect with its interval${points ? ", points" : ""}`,
            }),
            h("p", { class: "soft" }, "Shaded: effects too small to matter. Bold: the effect whose replicates are below."),
          ]
        : [],
      series.length
        ? [
            h("h2", {}, `Each replicate: ${what[e.of] ?? e.of}`),
            sequence(rows, so, {
              mark,
              what: e.statement,
              yLabel: points ? "points" : e.kind,
              label: `${e.statement}: what each replicate says`,
              percent: false,
              zero: true,
              verticals: e.look ? [[e.look, `the verdict is of ${many(e.look, "replicate")}`]] : [],
            }),
          ]
        : [],
    ],
    more: [
      h(
        "p",
        { class: "soft" },
        "The line is the mean of the replicates so far, the band its 95 % interval. The verdict has the interval of its look, which is a little wider, as the ledger may be looked at more than once.",
      ),
      e.pairs.length ? numbers([" Pair", "Effect", " Runs", " Classes"], e.pairs.map(links), `The runs behind it (${many(e.pairs.length, "pair")})`) : [],
      e.kind == "correlation" && h("p", {}, h("a", { href: at("methods", []) }, "The objectives it is over")),
      numbers(
        ["Replicate", "Effect", "Mean so far", "From", "To"],
        rows.map((row, k) => [row.name, digits(row.value), ...[so[k].mean, so[k].low, so[k].high].map(v => (Number.isFinite(v) ? digits(v) : ""))]),
      ),
      h("p", {}, h("a", { href: "#claims" }, "All claims")),
    ],
  }
}
function claims() {
  if (!meta.claims.length && !meta.ledgers.length)
    return empty(
      "No claim has been tested yet",
      `The verdicts are written with the tables of the profile: dmlstudy tables --profile ${meta.profile}, then make the page again.`,
    )
  const ids = [...meta.ledgers.flatMap(ledger => ledger.effects.map(e => e.id)), ...meta.claims.map(one => one.id)],
    id = asked.claim ? choose("claim", ids) : "",
    claim = meta.claims.find(one => one.id == id),
    later = meta.ledgers.find(ledger => ledger.effects.some(e => e.id == id)),
    menu = claimMenu(id)
  if (later) return laterClaim(later, id, menu)
  if (!claim) return allClaims(menu)
  const sets = claim.results.map(r => r.dataset),
    shown = claim.results.filter(r => r.runs.length).map(r => r.dataset),
    data = choose("data", sets, shown[0] ?? sets[0]),
    result = claim.results.find(r => r.dataset == data),
    metric = metricOf(meta.metrics.some(one => one.name == claim.metric) ? claim.metric : "recall@1"),
    nameSet = name => (name == "all" ? "all data sets together" : titleOf(name))
  const text = r =>
    r.verdict == "not asked"
      ? "not asked"
      : `${claimText(r.effect, claim.unit)}${Number.isFinite(r.low ?? NaN) ? ` (${claimText(r.low, claim.unit)} to ${claimText(r.high, claim.unit)})` : ""}`
  const factor = claim.unit == "points" ? 100 : 1,
    edge = claim.direction == "-" ? -claim.threshold : claim.threshold
  const rows = claim.results
    .filter(r => r.effect !== null)
    .map(r => ({
      label: `${VERDICTS[r.verdict]} ${short(r.dataset)}`,
      mean: r.effect,
      low: r.low ?? NaN,
      high: r.high ?? NaN,
      mark: 0,
      tone: "ink-mark",
      shade: r.dataset == data,
      text: text(r),
      href: address("claims", { claim: id, data: r.dataset }),
      told: `${nameSet(r.dataset)}: ${r.verdict}, ${text(r)}, ${many(r.n, (r.counted ?? "").replace(/s$/, ""))}`,
    }))
  const groups = new Map()
  for (const [side, first, end] of result.runs)
    for (let i = first; i < end; i++) {
      const key = `${side}|${columns.dataset[i]}|${columns.method[i]}|${columns.setting[i]}`
      groups.set(key, [...(groups.get(key) ?? []), i])
    }
  const rule = "validation",
    v = values(metric.name, rule),
    evidence = [...groups]
      .map(([key, runs]) => {
        const own = runs.filter(i => !isNaN(v[i])),
          i = runs[0],
          set = sets.includes("all") ? `${short(meta.datasets[columns.dataset[i]].name)}: ` : "",
          label = set + methodOf(i).name + (settingOf(i) ? ` · ${inWords(settingOf(i))}` : "")
        return (
          own.length && {
            ...interval(own.map(i => v[i])),
            side: key[0],
            low: NaN,
            high: NaN,
            label,
            mark: methodOf(i).mark,
            points: own.map(i => ({ value: v[i] })),
            runs: own,
            href: address("replicates", {
              data: meta.datasets[columns.dataset[i]].name,
              method: [methodOf(i).name],
              setting: settingOf(i),
              metric: metric.name,
              rule,
            }),
            told: `${label}: ${write(mean(own.map(i => v[i])), metric)}, ${many(own.length, "run")}. Open its replicates.`,
          }
        )
      })
      .filter(Boolean)
  for (const row of evidence) row.text = write(row.mean, metric)
  const both = new Set(evidence.map(row => row.side)).size > 1,
    total = evidence.reduce((a, row) => a + row.runs.length, 0),
    most = 60
  const part = (side, words) => {
    const own = evidence.filter(row => row.side == side)
    return own.length
      ? [
          h(
            "h2",
            {},
            `${words} (${many(
              own.reduce((a, row) => a + row.runs.length, 0),
              "run",
            )})`,
          ),
          dots(own.slice(0, most), { metric, label: unit(metric), beside: evidence }),
          own.length > most && h("p", { class: "soft" }, `${own.length - most} more groups are in the table below.`),
        ]
      : []
  }
  return {
    title: `“${claim.statement}”: ${result.verdict}${sets.length > 1 ? ` on ${nameSet(data)}` : ""}`,
    controls: [
      menu,
      sets.length > 1 &&
        select(
          "data",
          "Data set",
          sets.map(name => [name, nameSet(name)]),
          data,
        ),
    ],
    lead: `${claim.paper}${claim.source ? `, ${claim.source}` : ""}. ${about[claim.direction] ?? "Threshold"} ${claim.direction == "0" ? `± ${claimText(claim.threshold, claim.unit).slice(1)}` : edge + claim.null ? claimText(edge + claim.null, claim.unit) : "0"}${claim.unit == "points" ? " points" : ""}. ${result.effect === null ? `There are no runs for it on ${nameSet(data)} yet.` : `Here: ${text(result)}, ${many(result.n, (result.counted ?? "").replace(/s$/, ""))}${result.pairs ? `, ${result.pairs} pairs` : ""}.`}`,
    figure: [
      rows.length
        ? [
            dots(rows, {
              metric: { percent: claim.unit == "points" },
              zero: claim.null,
              sign: true,
              band: [claim.null - claim.threshold, claim.null + claim.threshold],
              label: `effect with 95 % interval${claim.unit == "points" ? ", points" : claim.unit == "factor" ? ", powers of ten" : ""}`,
            }),
            h(
              "p",
              { class: "soft" },
              `${claim.threshold ? "Shaded: effects too small to matter. " : ""}Bold: the data set whose runs are below.`,
            ),
          ]
        : [],
    ],
    more: [
      evidence.length
        ? [
            h(
              "p",
              {},
              `Behind the verdict are ${many(total, "run")}, shown by ${metric.title} at the step that the held-out classes choose. Small marks: single runs; large: their mean.`,
            ),
            both ? [part("0", "The first side of the comparison"), part("1", "The side it is compared with")] : part("0", "Runs"),
            numbers(
              ["Method", " Setting", " Replicate", metric.title, " Curves"],
              evidence.flatMap(row =>
                row.runs.map(i => [
                  methodOf(i).name,
                  inWords(settingOf(i)),
                  replicateOf(i),
                  write(v[i], metric, 1),
                  h(
                    "a",
                    {
                      href: address("curves", {
                        data: meta.datasets[columns.dataset[i]].name,
                        method: [methodOf(i).name],
                        setting: settingOf(i),
                        replicate: replicateOf(i),
                      }),
                    },
                    "its curves",
                  ),
                ]),
              ),
              `All ${many(total, "run")} as a table`,
            ),
          ]
        : h(
            "p",
            {},
            result.effect === null
              ? `Make the runs with: dmlstudy run --profile ${meta.profile}.`
              : claim.test == "computed"
                ? "This is computed, not sampled: no run stands behind it."
                : "No run of this profile stands behind it.",
          ),
      claim.again.length && meta.ledgers.length
        ? h(
            "p",
            {},
            "Later ledgers ask it again, on drawings: ",
            claim.again.map((at, k) => {
              const [name, of] = at.split(/ (.*)/),
                e = effectOf(name, of)
              return e && [k ? ", " : "", h("a", { href: address("claims", { claim: name, of: e.of }) }, `${at}: ${inWordsLater(e.verdict)}`)]
            }),
          )
        : [],
      h("p", {}, h("a", { href: "#claims" }, "All claims")),
    ],
  }
}

// ------------------------------------------------------------------ the page
const DRAW = { methods, trials, pair, curves, replicates, claims }
let drawnAt = 0
function draw(moved) {
  notices = []
  read()
  const focused = document.activeElement?.id,
    view = DRAW[asked.view](),
    keep = Object.fromEntries(["data", "rule", "metric"].map(name => [name, asked[name]]))
  $("tabs").replaceChildren(
    ...VIEWS.map(([name, words]) =>
      h(
        "a",
        {
          id: `tab-${name}`,
          href: address(name, {
            ...keep,
            claim: name == "claims" ? asked.claim : null,
            of: name == "claims" ? asked.of : null,
            data: asked.data == "all" ? null : asked.data,
            method:
              ["pair", "replicates", "curves"].includes(name) && asked.view != "trials" && asked.method.length < 3 ? asked.method : [],
          }),
          "aria-current": name == asked.view && "page",
        },
        words,
      ),
    ),
  )
  $("controls").replaceChildren(...view.controls.filter(Boolean))
  $("title").textContent = view.title
  $("lead").textContent = view.lead
  $("notice").textContent = notices.join(" ")
  $("figure").replaceChildren(...view.figure.flat(9).filter(Boolean))
  $("more").replaceChildren(...view.more.flat(9).filter(Boolean))
  say(view.figure.length && asked.view != "claims" ? "Point at a mark, or reach it with the tab key, to read its numbers here." : "", true)
  document.title = `${view.title} · explorer`
  if (focused && $(focused)) $(focused).focus({ preventScroll: true })
  else if (moved) {
    $("title").focus({ preventScroll: true })
    scrollTo(0, 0)
  }
  drawnAt = $("figure").clientWidth
}
$("controls").addEventListener("submit", event => event.preventDefault())
$("skip").addEventListener("click", event => {
  event.preventDefault()
  $("title").focus()
  $("title").scrollIntoView()
})
addEventListener("hashchange", () => draw(true))
addEventListener("resize", () => $("figure").clientWidth != drawnAt && meta && draw(false))
unpack()
  .then(() => {
    $("foot").textContent = `${meta.about} ${many(meta.runs, "run")} and ${many(
      meta.trials.reduce((a, one) => a + one.scores.length, 0),
      "trial",
    )}. ${meta.note} The address of the page holds what is shown: copy it to share a view. Nothing is loaded from elsewhere.`
    draw(false)
    document.documentElement.dataset.ready = Math.round(performance.now())
  })
  .catch(error => {
    $("title").textContent = "The page could not be opened"
    $("lead").textContent = `A browser from 2023 or later is needed. It said: ${error.message}`
    throw error
  })
