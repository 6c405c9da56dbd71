"use strict"
// One page, no library: points, intervals and lines are little work in SVG.
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
const link = (href, ...words) => h("a", { href }, words)
const p = (...words) => h("p", {}, words)
const soft = (...words) => h("p", { class: "soft" }, words)

// ------------------------------------------------------------------ data
let meta
async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent), letter => letter.charCodeAt(0))
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
  meta = await new Response(plain).json()
  $("data").remove()
}
const known = {}
const remember = (key, make) => (known[key] ??= make())
// numbers of a run (shares are held as differences), a value for each run, a curve of a run
const valuesIn = (held, share) => held.map((sum => v => (v === null ? NaN : share ? (sum += v) / 1e4 : v))(0))
const metricOf = name => meta.metrics.find(one => one.name == name) ?? { name, title: name, percent: false, values: {} }
function values(name, rule) {
  const { values: byRule, percent } = metricOf(name)
  const of = run => valuesIn(Object.values(byRule).map(held => held[run]), percent)[Object.keys(byRule).indexOf(rule)]
  return remember(`${name}|${rule}`, () => Array.from({ length: meta.runs }, (_, run) => of(run) ?? NaN))
}
const curve = (one, run) => valuesIn(one.values[run], one.metric != "rho")
const stepsOf = run => meta.steps[meta.columns.steps[run]]
function runsWhere(data, test = () => true) {
  const part = meta.datasets.findIndex(one => one.name == data)
  return remember(`runs|${data}`, () => meta.columns.dataset.flatMap((own, run) => (own == part ? [run] : []))).filter(test)
}
const methodOf = run => meta.methods[meta.columns.method[run]]
const replicateOf = run => meta.replicates[meta.columns.replicate[run]]
const settingOf = run => meta.settings[meta.columns.setting[run]]
const partOf = data => meta.datasets.find(one => one.name == data)
const titleOf = data => partOf(data)?.title ?? data
const ruleOf = name => meta.rules.find(one => one.name == name)?.title ?? name
const markOf = method => meta.methods.find(one => one.name == method)?.mark ?? 0
const inWords = setting => (setting ? setting.replaceAll("=", " ").replaceAll("_", " ").replaceAll(";", ",") : "as in the study")
const sorted = names => [...new Set(names)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }))

// ------------------------------------------------------------------ statistics
const sum = x => x.reduce((a, b) => a + b, 0)
const mean = x => sum(x) / x.length
function std(x) {
  const m = mean(x)
  return Math.sqrt(sum(x.map(v => (v - m) ** 2)) / (x.length - 1))
}
function logGamma(x) {
  const c = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 1.208650973866179e-3, -5.395239384953e-6]
  const series = c.reduce((a, b, i) => a + b / (x + 1 + i), 1.000000000190015)
  return (x + 0.5) * Math.log(x + 5.5) - x - 5.5 + Math.log((2.5066282746310005 * series) / x)
}
function incompleteBeta(x, a, b) {
  // regularised, by its continued fraction (Lentz)
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a)
  const away = v => (Math.abs(v) < 1e-300 ? 1e-300 : v)
  let c = 1
  let d = 1 / away(1 - ((a + b) * x) / (a + 1))
  let f = d
  for (let m = 1; m < 300; m++) {
    const before = f
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m))
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))
    for (const k of [even, odd]) {
      d = 1 / away(1 + k * d)
      c = away(1 + k / c)
      f *= c * d
    }
    if (Math.abs(f - before) < 1e-14 * Math.abs(f)) break
  }
  return (f * Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x))) / a
}
const twoSided = (t, df) => incompleteBeta(df / (df + t * t), df / 2, 0.5) // p value of Student's t
function bisect(low, high, rounds, below) {
  // the largest value below which something is true
  for (let i = 0; i < rounds; i++) {
    const middle = (low + high) / 2
    below(middle) ? (low = middle) : (high = middle)
  }
  return low
}
const quantile = df => remember(`t|${df}`, () => bisect(0, 20, 60, t => twoSided(t, df) > 0.05)) // of 97.5 %
function interval(x) {
  // mean with Student's 95 % interval
  const m = mean(x)
  const half = x.length > 1 ? (quantile(x.length - 1) * std(x)) / Math.sqrt(x.length) : NaN
  return { mean: m, low: m - half, high: m + half, half, n: x.length }
}
function anytime(x, tau = 2) {
  // half-width of the interval that holds at every look (mixture of t statistics)
  const n = x.length
  const g = 1 + n * tau * tau
  const K = (g / 0.05 ** 2) ** (1 / n)
  return n < 3 || K >= g ? NaN : (std(x) / Math.sqrt(n)) * Math.sqrt(((n - 1) * g * (K - 1)) / (g - K))
}
const densityOf = z => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI)
const PHI = []
function phi(z) {
  // the normal distribution function between -8 and 8, from a table by Simpson's rule
  if (!PHI.length)
    for (let i = 0, total = 0; i <= 1600; i++) {
      PHI.push(total)
      const at = -8 + i / 100
      total += (densityOf(at) + 4 * densityOf(at + 0.005) + densityOf(at + 0.01)) / 600
    }
  const at = (Math.min(Math.max(z, -8), 7.99) + 8) * 100
  const i = Math.floor(at)
  return PHI[i] + (at - i) * (PHI[i + 1] - PHI[i])
}
function rangeBelow(q, k) {
  // chance that k normal values span less than q
  let total = 0
  for (let z = -8; z <= 8; z += 0.1) total += densityOf(z) * (phi(z + q) - phi(z)) ** (k - 1)
  return Math.min(1, k * total * 0.1)
}
function rangeQuantile(k, df) {
  // 95 % of the studentized range: `rangeBelow`, averaged over the spread s of a sample, s^2 df ~ chi^2
  const log = x => (df - 1) * Math.log(x) - (df * x * x) / 2
  const spreads = Array.from({ length: 480 }, (_, i) => Math.max(0, 1 - 4 / Math.sqrt(df)) + (i + 0.5) / 60 / Math.sqrt(df))
  const weights = spreads.map(x => Math.exp(log(x) - log(1)))
  const below = q => sum(spreads.map((x, j) => (weights[j] < 1e-12 ? 0 : weights[j] * rangeBelow(q * x, k)))) / sum(weights)
  return remember(`range|${k}|${df}`, () => bisect(0, 100, 30, q => below(q) < 0.95))
}
function tied(table) {
  // methods x replicates: not told apart from the best (ranks from all pairs at once, Tukey)
  const k = table.length
  const n = k && table[0].length
  if (n < 2 || k < 2) return table.map(() => n > 1)
  const means = table.map(mean)
  const columns = table[0].map((_, j) => mean(table.map(row => row[j])))
  const all = mean(means)
  const rest = table.flatMap((row, i) => row.map((v, j) => (v - means[i] - columns[j] + all) ** 2))
  const df = (k - 1) * (n - 1)
  const length = rangeQuantile(k, df) * Math.sqrt(sum(rest) / df / n)
  return means.map(m => Math.max(...means) - m <= length)
}

// ------------------------------------------------------------------ state, in the address
const VIEWS = {
  methods: ["Methods", "Which methods are best on a data set, and which differences are larger than chance."],
  trials: ["Trials", "How much a method gains from tuning, and how many trials that takes."],
  pair: ["Two methods", "Whether one method is better on all classes or on some."],
  curves: ["Curves", "When a run is best, and how it goes on after that."],
  replicates: ["Replicates", "How much a value varies, and how many replicates a conclusion needs."],
  claims: ["Claims", "What was registered before the runs, and what the runs say."],
}
let asked = {}
function read() {
  const [view, query] = location.hash.slice(1).split("?")
  const found = new URLSearchParams(query ?? "")
  asked = { view: view in VIEWS ? view : "methods", method: found.getAll("method") }
  for (const [name, value] of found) if (name != "method") asked[name] = value
}
function address(view, state) {
  const out = new URLSearchParams()
  for (const [name, value] of Object.entries(state))
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) out.append(name, one)
  const query = out.toString()
  return `#${view}${query ? "?" + query : ""}`
}
function go(change) {
  const { view, ...rest } = { ...asked, ...change }
  location.hash = address(view, rest)
}
let notices
function choose(name, options, otherwise) {
  // what is asked for if it is there, else what comes first; says so
  const wanted = asked[name]
  if (options.includes(wanted)) return wanted
  const found = options.includes(otherwise) ? otherwise : options[0]
  if (wanted) notices.push(`There is nothing for “${wanted}” here${found === undefined ? "" : `: this shows “${found || "as in the study"}”`}.`)
  return found
}
function select(name, label, options, value, change = value => ({ [name]: value })) {
  // options: [name, words], or groups of these
  const entry = one =>
    one.group
      ? h("optgroup", { label: one.group }, one.options.map(entry))
      : h("option", { value: one[0], selected: one[0] == value }, one[1])
  const node = h("select", { id: `choose-${name}`, onchange: event => go(change(event.target.value)) }, options.map(entry))
  return h("label", {}, label, node)
}
const plain = names => names.map(name => [name, name])
const dataControl = (sets, data) =>
  select("data", "Data", sets.map(name => [name, titleOf(name)]), data, data => ({ data, setting: "", replicate: "", rule: "" }))
const ruleControl = (rules, rule) => select("rule", "Checkpoint", rules.map(name => [name, ruleOf(name)]), rule)
const hasValues = (runs, metric, rule) => runs.some(run => !isNaN(values(metric, rule)[run]))
function metricAndRule(data, runs, controls) {
  const all = meta.rules.map(one => one.name)
  const rules = all.filter(rule => hasValues(runs, "recall@1", rule))
  const rule = choose("rule", rules.length ? rules : ["last"], partOf(data).rule)
  const there = meta.metrics.filter(one => hasValues(runs, one.name, rule)).map(one => one.name)
  const metric = choose("metric", there, "recall@1")
  controls.push(select("metric", "Measure", there.map(name => [name, metricOf(name).title]), metric), ruleControl(all, rule))
  return [metricOf(metric), rule]
}
function paperControl(papers, controls) {
  const rows = choose("rows", ["all", ...papers], "all")
  if (papers.length > 1) controls.push(select("rows", "Methods of", plain(["all", ...papers]), rows, rows => ({ rows, method: [] })))
  return paper => rows == "all" || paper == rows
}

// ------------------------------------------------------------------ numbers and marks
function write(value, metric, more = 0) {
  if (!Number.isFinite(value)) return ""
  if (metric.percent) return (100 * value).toFixed(1 + more).replace("-", "−")
  return (Math.abs(value) >= 100 ? value.toFixed(0) : value ? value.toPrecision(3) : "0").replace("-", "−")
}
const signed = text => (text.startsWith("-") || text.startsWith("−") ? "" : "+") + text.replace("-", "−")
const unit = metric => (metric.percent ? `${metric.title}, %` : metric.title)
const plus = (e, metric, more = 0) => write(e.mean, metric, more) + (Number.isFinite(e.half) ? ` ± ${write(e.half, metric, more)}` : "")
const many = (n, word) => `${n} ${word}${n == 1 ? "" : word.endsWith("ch") ? "es" : "s"}`
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
const arrow = (x, y, turn) => s("path", { d: "M0,-6L4,1H-4Z", transform: `translate(${x},${y}) rotate(${turn})` }) // goes on outside
const stroke = (x1, y1, x2, y2, kind) => s("line", { x1, y1, x2, y2, class: kind })
const caption = (x, y, anchor, text) => s("text", { x, y, "text-anchor": anchor, class: "quiet" }, text)
const upwards = (y, text) => s("text", { transform: `translate(12,${y}) rotate(-90)`, "text-anchor": "middle", class: "quiet" }, text)
function legend(kinds) {
  const icon = kind => s("svg", { width: 14, height: 14, "aria-hidden": true, class: `mark m${kind}` }, shape(kind, 7, 7))
  return h("ul", { class: "key" }, [...new Set(kinds)].sort().map(kind => h("li", {}, icon(kind), meta.marks[kind])))
}
const say = (text, hint) => Object.assign($("said"), { textContent: text, className: hint ? "" : "now" })
const tell = text => (text ? { onpointerenter: () => say(text), onfocus: () => say(text) } : {})
const reached = ({ href, told }, more, ...children) =>
  s(href ? "a" : "g", href || told ? { href, role: href ? null : "img", "aria-label": told, ...more, ...tell(told) } : {}, children)

// ------------------------------------------------------------------ axes and figures
function ticks(low, high, count, whole) {
  const raw = Math.max((high - low) / Math.max(count, 2), whole ? 1 : 0)
  const power = 10 ** Math.floor(Math.log10(raw))
  const step = [1, 2, 5, 10].find(k => k * power >= raw * 0.999) * power
  const out = []
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step / 1e6 ? 0 : v)
  if (out.length < 2 && !whole && count < 9) return ticks(low, high, count + 2)
  return [out, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))]
}
const width = () => Math.max(300, Math.min($("figure").clientWidth || 800, 1180))
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
function range(numbers, far = [], fences = 0) {
  // of the points (with fences but far outliers), with room for intervals that are not many times longer
  let own = numbers.filter(Number.isFinite).sort((a, b) => a - b)
  const [first, third] = [0.25, 0.75].map(q => own[Math.floor(q * own.length)])
  const fence = fences * (third - first)
  if (own.length > 9 && fence) own = own.filter(v => v > first - fence && v < third + fence)
  if (!own.length) return [0, 1]
  const [least, most] = [Math.min(...own), Math.max(...own)]
  const room = most - least || Math.abs(most) || 1
  const more = far.filter(Number.isFinite)
  const low = Math.min(least, Math.max(least - room * 0.5, Math.min(...more, least)))
  const high = Math.max(most, Math.min(most + room * 0.5, Math.max(...more, most)))
  const margin = 0.04 * (high - low || Math.abs(high) || 1)
  return [low - margin, high + margin]
}

// Rows of points with intervals, on a narrow screen below their names. row: label, mean, low, high, mark, tone, shade, text, href, told
function dots(rows, { metric, label, zero = null, band = null, sign = false }) {
  const w = width()
  const narrow = w < 600
  const line = narrow ? 42 : 23
  const top = rows.length > 15 ? 26 : 6
  const left = narrow ? 12 : Math.min(Math.max(...rows.map(row => long(row.label, row.shade))) + 14, w * 0.42)
  const right = narrow ? 12 : Math.max(...rows.map(row => long(row.text, true))) + 14
  const bottom = top + rows.length * line
  const also = [...(zero === null ? [] : [zero]), ...(band ?? [])]
  const [low, high] = range([...rows.map(row => row.mean), ...also], rows.flatMap(row => [row.low, row.high]), 5)
  const at = v => left + ((v - low) / (high - low)) * (w - left - right)
  const x = v => at(Math.min(Math.max(v, low), high))
  const factor = metric.percent ? 100 : 1
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
  out.append(caption(Math.min((left + w - right) / 2, w - long(label) / 2), bottom + 33, "middle", label))
  rows.forEach((row, i) => {
    const middle = top + (i + 0.5) * line
    const [y, name] = narrow ? [middle + 9, middle - 9] : [middle, middle]
    const room = narrow ? w - long(row.text, true) - 12 : left - 12
    const own = s("g", { class: `mark ${row.tone ?? "m" + row.mark}` })
    if (Number.isFinite(row.low + row.high) && row.high > low && row.low < high) own.append(stroke(x(row.low), y, x(row.high), y, ""))
    if (Math.min(row.mean, row.low || row.mean) < low) own.append(arrow(at(low), y, -90))
    if (Math.max(row.mean, row.high || row.mean) > high) own.append(arrow(at(high), y, 90))
    if (row.mean >= low && row.mean <= high) own.append(shape(row.mark, x(row.mean), y))
    const place = { x: narrow ? 2 : left - 10, y: name, "text-anchor": narrow ? "start" : "end" }
    const words = s("text", { ...place, class: `label${row.shade ? " bold" : ""}` }, cut(row.label, room, row.shade))
    const text = s("text", { x: w - 2, y: name, "text-anchor": "end", class: row.shade ? "bold" : "" }, row.text)
    const hit = s("rect", { x: 0, y: middle - line / 2, width: w, height: line, class: "hit" })
    out.append(reached(row, {}, hit, words, own, text))
  })
  return h("div", {}, out)
}

// Lines over an axis. line: name, mark, points [[x, y]], strong, band [[x, low, high]], href, told. A strong line is drawn whole.
function lines(all, { xLabel, yLabel, label, percent = true, height = 400, verticals = [], whole = false, joined = true, zero = false }) {
  const w = width()
  const strong = all.filter(line => line.strong)
  const named = strong.filter(line => line.name)
  const right = Math.min(Math.max(20, ...named.map(line => long(line.name) + 24)), w * 0.4)
  const left = 52
  const top = 14 + 17 * verticals.length
  const bottom = height - 48
  const factor = percent ? 100 : 1
  const places = all.flatMap(line => line.points.map(point => point[0]))
  const [first, last] = [Math.min(...places), Math.max(...places)]
  const [xLow, xHigh] = first == last ? [first - 1, last + 1] : [first, last]
  const bounds = all.flatMap(line => (line.band ?? []).flatMap(b => b.slice(1)))
  const heights = some => some.flatMap(line => line.points.map(point => point[1]))
  const [low, high] = range(heights(strong.length ? strong : all), [...bounds, ...heights(all)])
  const margin = joined ? 0 : (xHigh - xLow) * 0.03
  const x = v => left + ((v - xLow + margin) / (xHigh - xLow + 2 * margin)) * (w - left - right)
  const y = v => bottom - ((v - low) / (high - low)) * (bottom - top)
  const out = s("svg", { width: w, height, role: "group", "aria-label": label })
  const [ys, digits] = ticks(low * factor, high * factor, 6)
  const [xs, more] = ticks(xLow, xHigh, (w - left - right) / (whole ? 32 : 60), whole)
  for (const v of ys) {
    out.append(stroke(left, y(v / factor), w - right, y(v / factor), "grid"))
    out.append(caption(left - 8, y(v / factor), "end", v.toFixed(digits).replace("-", "−")))
  }
  for (const v of xs) out.append(caption(x(v), bottom + 14, "middle", v.toFixed(whole ? 0 : more)))
  out.append(stroke(left, bottom, w - right, bottom, "axis"))
  if (zero && low < 0 && high > 0) out.append(stroke(left, y(0), w - right, y(0), "axis"))
  out.append(caption((left + w - right) / 2, height - 12, "middle", xLabel), upwards((top + bottom) / 2, yLabel))
  verticals.forEach(([v, words], i) => {
    const near = x(v) + long(words) > w - right
    const place = near ? Math.max(x(v) - 6, long(words)) : x(v) + 6 // never beyond the left edge
    out.append(stroke(x(v), 12 + 17 * i, x(v), bottom, "axis dashed"), caption(place, 10 + 17 * i, near ? "end" : "start", words))
  })
  // thin lines and bands may leave the axes: they are cut there, and no value is moved to the edge
  const inner = { x: left - 8, y: top - 8, width: w - left - right + 16, height: bottom - top + 8 }
  const frame = s("svg", { ...inner, viewBox: `${inner.x} ${inner.y} ${inner.width} ${inner.height}` })
  const finite = points => points.filter(point => Number.isFinite(point[1]))
  const path = points => finite(points).map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ")
  for (const line of [...all].sort((a, b) => !!a.strong - !!b.strong)) {
    const band = finite(line.band ?? [])
    const edge = [...band.map(b => [b[0], b[1]]), ...band.toReversed().map(b => [b[0], b[2]])]
    const kind = `${line.strong ? "" : "thin"} ${line.dashed ? "dashed" : ""}`
    const own = band.length ? [s("polygon", { class: "area", points: path(edge) })] : []
    if (joined || line.joined) own.push(s("polyline", { points: path(line.points), class: kind }))
    if (line.strong && !line.bare) own.push(finite(line.points).map(([a, b]) => shape(line.mark, x(a), y(b), joined ? 0.85 : 1.15)))
    const tone = line.tone ?? (line.strong ? `m${line.mark}` : "soft-mark")
    frame.append(reached(line, { tabindex: line.strong ? 0 : -1 }, s("g", { class: `mark ${tone}` }, own)))
  }
  out.append(frame)
  const ends = named.flatMap(line => finite(line.points).slice(-1).map(end => ({ line, end, at: y(end[1]) })))
  ends.sort((a, b) => a.at - b.at)
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
  for (const { line, end, at } of ends) {
    out.append(stroke(x(end[0]) + 5, y(end[1]), w - right + 14, at, "grid"))
    out.append(s("text", { x: w - right + 17, y: at }, cut(line.name, right - 18)))
  }
  return h("div", {}, out)
}
function numbers(heads, rows, words = "The same as a table") {
  // words in the first column and where a heading starts with a blank
  const kind = heads.map(head => (head.startsWith(" ") ? "words" : null))
  const head = h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: kind[i] }, head.trim())))
  const body = rows.map(row => h("tr", {}, row.map((cell, i) => h("td", { class: kind[i] }, cell))))
  const table = h("table", {}, h("thead", {}, head), h("tbody", {}, body))
  return h("details", {}, h("summary", {}, words), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": words }, table))
}

// ------------------------------------------------------------------ views
const empty = (title, lead, controls = []) => ({ title, lead, controls, figure: [], more: [] })
const dataNames = () => meta.datasets.map(one => one.name).filter(name => runsWhere(name).length)
const nothing = () =>
  empty(
    "There are no runs yet",
    `This page shows the records of the profile “${meta.profile}”, and there are none. ` +
      `Make them with: dmlstudy run --profile ${meta.profile}, then make the page again.`,
  )
function byMethod(runs, v) {
  // method -> replicate -> value
  const out = new Map()
  for (const run of runs) {
    const id = meta.columns.method[run]
    if (!isNaN(v[run])) out.set(id, (out.get(id) ?? new Map()).set(meta.columns.replicate[run], v[run]))
  }
  return out
}
function settings(runs, controls) {
  const counts = new Map()
  for (const run of runs) counts.set(settingOf(run), (counts.get(settingOf(run)) ?? 0) + 1)
  const all = sorted(counts.keys())
  const setting = choose("setting", all, "")
  const entries = all.map(name => [name, `${inWords(name)} (${many(counts.get(name), "run")})`])
  if (all.length > 1) controls.push(select("setting", "Setting", entries, setting))
  return setting
}
function shared(table) {
  // replicates, and methods that have all of them: the largest table without a gap
  const ids = [...table.keys()]
  const every = [...new Set(ids.flatMap(id => [...table.get(id).keys()]))]
  const having = new Map(every.map(one => [one, ids.filter(id => table.get(id).has(one)).length]))
  const tables = [...new Set(having.values())].map(least => {
    const replicates = every.filter(one => having.get(one) >= least)
    return [replicates, ids.filter(id => replicates.every(one => table.get(id).has(one)))]
  })
  const cells = ([replicates, whole]) => replicates.length * whole.length
  return tables.reduce((a, b) => (cells(b) > cells(a) ? b : a), [[], []])
}
function methodBoxes(names, picked) {
  const change = (name, on) => go({ method: on ? [...picked, name] : [...picked].filter(one => one != name) })
  const box = name => ({ type: "checkbox", id: `box-${name}`, "aria-label": name, checked: picked.has(name) })
  const boxes = names.map(name =>
    h("span", {}, h("input", { ...box(name), onchange: event => change(name, event.target.checked) }), " ", h("span", {}, name)),
  )
  const words = picked.size ? `Only ${many(picked.size, "chosen method")}` : "Show only some methods"
  const all = picked.size > 0 && link(address("methods", { ...asked, view: null, method: [] }), "Show all")
  return h("details", { open: picked.size > 0 || document.activeElement?.id.startsWith("box-") }, h("summary", {}, words), h("div", { class: "key" }, boxes), all)
}
function methods() {
  const sets = dataNames()
  const controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0])
  const all = runsWhere(data)
  controls.push(dataControl(sets, data))
  const [metric, rule] = metricAndRule(data, all, controls)
  const setting = settings(all, controls)
  const ofPaper = paperControl([...new Set(all.map(run => methodOf(run).paper))], controls)
  const picked = new Set(asked.method)
  const wanted = run => settingOf(run) == setting && ofPaper(methodOf(run).paper) && (!picked.size || picked.has(methodOf(run).name))
  const table = byMethod(all.filter(wanted), values(metric.name, rule))
  const [replicates, whole] = shared(table)
  const most = Math.max(0, ...[...table.values()].map(own => own.size))
  const ties = new Set()
  const cells = whole.map(id => replicates.map(one => table.get(id).get(one)))
  if (metric.better && whole.length > 1) tied(cells).forEach((yes, i) => yes && ties.add(whole[i]))
  const ofMethod = id => (whole.includes(id) ? replicates : [...table.get(id).keys()]).map(one => table.get(id).get(one))
  const drawn = [...table.keys()]
    .map(id => ({ id, ...meta.methods[id], ...interval(ofMethod(id)), apart: !whole.includes(id) }))
    .sort((a, b) => a.apart - b.apart || b.mean - a.mean)
    .map(row => ({
      ...row,
      label: row.name + (row.apart ? " *" : ""),
      shade: ties.has(row.id),
      text: plus(row, metric),
      href: address("replicates", { data, metric: metric.name, rule, setting, method: [row.name] }),
      told: `${row.name}: ${plus(row, metric)}, ${many(row.n, "replicate")}${ties.has(row.id) ? ", among the best" : ""}. Open its replicates.`,
    }))
  const best = drawn.filter(row => row.shade)
  const apart = drawn.filter(row => row.apart).length
  const counted = many(drawn.length, "method")
  let title = `${counted} with ${drawn.length == 1 ? "its interval" : "their intervals"}`
  if (!drawn.length) title = "No run has this measure"
  else if (best.length > 1) title = `${best.length} of ${counted} cannot be told from the best`
  else if (best.length) title = `${best[0].name} is ahead of ${whole.length > 2 ? `the other ${whole.length - 1} methods` : "the other method"}`
  const lead = [`Mean over replicates and its 95 % interval${most < 2 ? ", which needs a second replicate" : ""}.`]
  if (replicates.length < most) lead.push(`Means are over the ${many(replicates.length, "replicate")} that most methods share.`)
  if (apart) lead.push(`* ${many(apart, "method")} without some of these: over the replicates that each has, below the others and not tested.`)
  if (best.length) lead.push("Shaded, and in bold: not told from the best by paired tests, all pairs compared at once at 5 %.")
  else if (most < 2) lead.push("With one replicate no method can be called better than another.")
  if (replicates.length == 2) lead.push("Two replicates make very wide intervals; arrows show that they go on.")
  const names = sorted(all.filter(run => settingOf(run) == setting).map(run => methodOf(run).name))
  const rows = drawn.map(row => [row.name, ...[row.mean, row.low, row.high].map(v => write(v, metric, 1)), row.n, row.shade ? "yes" : ""])
  return {
    title,
    lead: drawn.length ? lead.join(" ") : "Choose another measure, checkpoint or setting above.",
    controls,
    figure: drawn.length ? [legend(drawn.map(row => row.mark)), dots(drawn, { metric, label: `${unit(metric)}, ${short(data)}` })] : [],
    more: [methodBoxes(names, picked), numbers(["Method", "Mean", "From", "To", "Replicates", " Among the best"], rows)],
  }
}

function expectedBest(scores) {
  // of k of the trials, without repetition, k = 1 to n
  const up = [...scores].sort((a, b) => a - b)
  const n = up.length
  return up.map((_, place) => {
    // the chance that the best is the i-th: C(i-1, k-1) / C(n, k)
    const k = place + 1
    let share = k / n
    let total = 0
    for (let i = n; i >= k; i--) {
      total += share * up[i - 1]
      share *= i > 1 ? (i - k) / (i - 1) : 0
    }
    return [k, total]
  })
}
function trials() {
  const sets = [...new Set(meta.trials.map(one => one.dataset))]
  const controls = []
  if (!sets.length)
    return empty(
      "No search is recorded",
      "The figure shows how good the best of k trials is expected to be. It needs the records of a search: make them with " +
        `dmlstudy run --profile ${meta.profile} -p experiments search, then make the page again.`,
    )
  const data = choose("data", sets, sets[0])
  const all = meta.trials.filter(one => one.dataset == data).map(one => ({ ...meta.methods[one.method], scores: one.scores }))
  controls.push(dataControl(sets, data))
  const ofPaper = paperControl([...new Set(all.map(one => one.paper))], controls)
  const shown = all
    .filter(one => ofPaper(one.paper))
    .map(one => ({ ...one, n: one.scores.length, points: expectedBest(one.scores) }))
    .sort((a, b) => b.points.at(-1)[1] - a.points.at(-1)[1])
  const named = asked.method.filter(name => shown.some(one => one.name == name))
  const first = shown.filter((one, i) => shown.findIndex(other => other.mark == one.mark) == i)
  const strong = new Set(named.length ? named : first.map(one => one.name))
  const names = sorted(shown.map(one => one.name)).map(name => [name, (strong.has(name) ? "✓ " : "") + name])
  const turned = name => [...new Set([...strong].filter(one => one != name).concat(strong.has(name) ? [] : name))]
  controls.push(select("method", "Add or remove a method", [["", "choose …"], ...names], "", name => ({ method: turned(name) })))
  const percent = point => (point ? (100 * point[1]).toFixed(1) : "")
  const drawn = shown.map(one => ({
    ...one,
    strong: strong.has(one.name),
    href: address("trials", { data, rows: asked.rows, method: [...new Set([...strong, one.name])] }),
    told: `${one.name}: ${percent(one.points[0])} with one trial, ${percent(one.points.at(-1))} with ${one.n}`,
  }))
  const sizes = new Set(shown.map(one => one.n))
  const gain = mean(shown.map(one => one.points.at(-1)[1] - one.points[0][1]))
  return {
    title: `From one trial to ${sizes.size > 1 ? "all" : [...sizes]}, the score gains ${(100 * gain).toFixed(1)} points on average`,
    controls,
    lead:
      "Expected score of the best of k of the trials. The score is the mean of recall@1 and MAP@R on validation classes, so the best is " +
      `chosen and judged on the same classes. ${named.length ? "" : "The best method of each kind is named. "}Thin lines: the other methods.`,
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
      numbers(["Method", "Trials", "One trial", "Three", "All"], shown.map(one => [one.name, one.n, ...[0, 2, -1].map(k => percent(one.points.at(k)))])),
    ],
  }
}

function nameOfClass(data, k) {
  const text = meta.names[partOf(data).of]?.[k]?.replace(/^U\+[0-9A-F]+ /, "") ?? `class ${k + 1}`
  return (text[0].toUpperCase() + text.slice(1)).replaceAll("_", " ").replace("/", " ")
}
function scatter(a, b, [A, B], name) {
  // a point for each class
  const w = Math.min(width(), 560)
  const pad = 52
  const side = w - pad - 20
  const from = Math.floor(Math.max(0, Math.min(...a, ...b) - 2) / 10) * 10
  const at = v => pad + ((v - from) / (100 - from)) * side
  const up = v => 12 + ((100 - v) / (100 - from)) * side
  const plot = s("svg", { width: w, height: side + 62, role: "group", "aria-label": `Recall@1 of each class: ${A} across, ${B} up` })
  for (const v of ticks(from, 100, 5)[0]) {
    plot.append(stroke(at(v), up(from), at(v), up(100), "grid"), stroke(at(from), up(v), at(100), up(v), "grid"))
    plot.append(caption(at(v), up(from) + 14, "middle", v), caption(pad - 8, up(v), "end", v))
  }
  plot.append(stroke(at(from), up(from), at(100), up(100), "axis dashed"))
  plot.append(caption(pad + side / 2, side + 46, "middle", cut(`${A}: recall@1 of the class, %`, side)))
  plot.append(upwards(12 + side / 2, cut(`${B}: recall@1, %`, side)))
  a.forEach((_, k) => {
    const told = `${name(k)}: ${A} ${a[k]} %, ${B} ${b[k]} %`
    plot.append(s("g", { class: "ink mark ink-mark", opacity: 0.45, ...tell(told) }, shape(0, at(a[k]), up(b[k]), a.length > 200 ? 0.6 : 0.9)))
  })
  return plot
}
function pair() {
  const sets = meta.datasets.filter(one => Object.keys(one.classes).length > 1).map(one => one.name)
  const controls = []
  if (!sets.length)
    return empty(
      "Classes cannot be compared yet",
      "Two methods are compared by class where the records hold the hits of each test class, for at least two methods of one data set. " +
        "Train a second method to see this.",
    )
  const data = choose("data", sets, sets[0])
  const { classes, rule } = partOf(data)
  const names = sorted(Object.keys(classes))
  const runs = byMethod(runsWhere(data, run => settingOf(run) == ""), values("recall@1", rule))
  const own = name => runs.get(meta.methods.findIndex(one => one.name == name)) ?? new Map()
  const ranked = [...names].sort((a, b) => mean([...own(b).values()]) - mean([...own(a).values()]))
  for (const name of asked.method) if (!names.includes(name)) notices.push(`There is nothing for “${name}” here.`)
  const wanted = asked.method.filter(name => names.includes(name))
  const A = wanted[0] ?? ranked[0]
  const B = wanted[1] && wanted[1] != A ? wanted[1] : ranked.find(name => name != A)
  controls.push(
    dataControl(sets, data),
    select("method-a", "First method", plain(names), A, name => ({ method: [name, name == B ? A : B] })),
    select("method-b", "Second method", plain(names), B, name => ({ method: [name == A ? B : A, name] })),
  )
  const [a, b] = [classes[A], classes[B]]
  const order = a.map((_, k) => k).sort((k, l) => a[l] - b[l] - (a[k] - b[k]) || k - l)
  const [ahead, behind] = [order.filter(k => a[k] > b[k]), order.filter(k => b[k] > a[k])]
  const both = [...own(A)].filter(([one]) => own(B).has(one)).map(([one, v]) => v - own(B).get(one))
  const effect = both.length && interval(both)
  const points = v => signed(write(v, { percent: true }, 1))
  const bounds = effect && effect.n > 1 ? ` [${points(effect.low)}, ${points(effect.high)}]` : ""
  const line = k => [nameOfClass(data, k), a[k], b[k], signed((a[k] - b[k]).toFixed(0))]
  const list = some => h("ul", {}, some.map(k => h("li", {}, `${nameOfClass(data, k)}: ${signed((a[k] - b[k]).toFixed(0))}`)))
  const block = (winner, some) => [h("h2", {}, `Classes where ${winner} is ahead most (points)`), some.length ? list(some) : p("None.")]
  const alike = order.length - ahead.length - behind.length
  return {
    title: `${A} is better on ${ahead.length} classes, ${B} on ${behind.length}${alike ? `, alike on ${alike}` : ""}`,
    controls,
    lead:
      (effect
        ? `Over all classes, the first method minus the second is ${points(effect.mean)}${bounds} points of recall@1, ` +
          `over ${many(effect.n, "shared replicate")}. `
        : "") +
      `Each point is a test class: below the diagonal the first method is better. Shares (${ruleOf(rule)}) are means over replicates, ` +
      "to a point; with few images a class, single differences are mostly chance.",
    figure: [
      h(
        "div",
        { class: "two" },
        h("div", {}, scatter(a, b, [A, B], k => nameOfClass(data, k))),
        h("div", {}, block(A, ahead.slice(0, 8)), block(B, behind.slice(-8).reverse())),
      ),
    ],
    more: [numbers(["Class", A, B, "Difference"], order.map(line))],
  }
}

function methodAndSetting(data, controls) {
  const name = asked.method[0]
  const all = runsWhere(data)
  const names = sorted(all.map(run => methodOf(run).name))
  if (name && !names.includes(name)) notices.push(`There is nothing for “${name}” here.`)
  const trained = names.find(one => all.some(run => methodOf(run).name == one && settingOf(run) == "" && stepsOf(run).length > 1))
  const method = names.includes(name) ? name : (trained ?? names[0])
  controls.push(dataControl(dataNames(), data))
  controls.push(select("method", "Method", plain(names), method, name => ({ method: [name], setting: "", replicate: "" })))
  const own = all.filter(run => methodOf(run).name == method)
  const setting = settings(own, controls)
  return [method, setting, own.filter(run => settingOf(run) == setting)]
}
const CLASSES = { test: "test classes", validation: "validation classes", train: "training classes" }
function curves() {
  const sets = dataNames()
  const controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0])
  const [method, setting, runs] = methodAndSetting(data, controls)
  const there = meta.curves.filter(one => runs.some(run => curve(one, run).some(Number.isFinite)))
  const metrics = [...new Set(there.map(one => one.metric))]
  if (!metrics.length) return empty("This run has no curves", "Its records hold no evaluations. Choose another method or setting.", controls)
  const metric = metricOf(choose("metric", metrics, "recall@1"))
  const replicates = runs.map(replicateOf)
  const replicate = choose("replicate", replicates, replicates[0])
  const chosen = runs[replicates.indexOf(replicate)]
  controls.push(select("metric", "Measure", metrics.map(name => [name, metricOf(name).title]), metric.name))
  controls.push(select("replicate", "Replicate", plain(replicates), replicate))
  const own = there.filter(one => one.metric == metric.name)
  const parts = own.map(one => one.part)
  const part = choose("part", ["all", ...parts], "all")
  if (parts.length > 1) controls.push(select("part", "Classes", [["all", "all"], ...parts.map(name => [name, CLASSES[name]])], part))
  const all = []
  for (const one of own.filter(one => part == "all" || one.part == part))
    for (const run of runs) {
      const points = curve(one, run).map((v, k) => [stepsOf(run)[k], v]).filter(point => Number.isFinite(point[1]))
      const [name, mark] = [CLASSES[one.part], { test: 0, validation: 1, train: 3 }[one.part]]
      const [begin, end] = [points[0], points.at(-1)]
      const told = () => `${write(begin[1], metric)} at step ${begin[0]}, ${write(end[1], metric)} at step ${end[0]}`
      const look = { tone: run == chosen ? "ink-mark" : "soft-mark", dashed: one.part == "validation", strong: run == chosen }
      const href = address("curves", { ...asked, view: null, data, method: [method], setting, replicate: replicateOf(run) })
      const way = run == chosen ? {} : { href }
      if (points.length) all.push({ name, mark, points, ...look, ...way, told: `${name}, ${replicateOf(run)}: ${told()}` })
    }
  const at = new Map()
  for (const rule of meta.rules) {
    const step = Math.round(values("step", rule.name)[chosen])
    if (Number.isFinite(step)) at.set(step, [...(at.get(step) ?? []), rule.short])
  }
  const steps = stepsOf(chosen)
  const strong = all.filter(line => line.strong)
  const test = strong.find(line => line.name == CLASSES.test)
  const peak = test && test.points.reduce((a, b) => (b[1] > a[1] ? b : a))
  let title = `${method}: ${metric.title} during training`
  if (steps.length < 2) title = `${method}: nothing is trained, so there is one point`
  else if (peak && metric.better) title = `${method} on test classes: best at step ${peak[0]} of ${steps.at(-1)}`
  const label = `${metric.title} against training steps, ${method}, ${titleOf(data)}`
  const verticals = [...at].sort((a, b) => a[0] - b[0]).map(([step, rules]) => [step, rules.join(", ")])
  const valueAt = (line, step) => write(line.points.find(point => point[0] == step)?.[1], metric)
  return {
    title,
    controls,
    lead:
      `${metric.title} at each evaluation of one run, ${replicate}, setting: ${inWords(setting)}. ` +
      `${runs.length > 1 ? "Thin lines: the other replicates. " : ""}${at.size ? "Dashed: the step of each checkpoint." : ""}`,
    figure: all.length ? [lines(all, { xLabel: "training steps", yLabel: unit(metric), label, percent: metric.percent, verticals })] : [],
    more: [
      numbers(["Step", ...strong.map(line => line.name)], steps.map(step => [step, ...strong.map(line => valueAt(line, step))])),
      p(link(address("replicates", { data, method: [method], setting, metric: metric.name }), "All replicates of this method")),
    ],
  }
}

const soFar = x => x.map((_, k) => ({ k: k + 1, ...interval(x.slice(0, k + 1)), wide: anytime(x.slice(0, k + 1)) }))
function sequence(rows, so, { mark, what, looked, ...axes }) {
  // values in the order in which they came; with `looked` also the interval that holds at every look
  const more = { mark, strong: true, bare: true, joined: true }
  const each = { ...more, name: "", bare: false, joined: false, told: `${what}: ${many(rows.length, "replicate")}` }
  const all = [{ ...each, points: rows.map((row, k) => [k + 1, row.value]) }]
  all.push({ ...more, name: "mean so far", points: so.map(e => [e.k, e.mean]), band: so.map(e => [e.k, e.low, e.high]) })
  for (const side of looked ? [-1, 1] : []) {
    const points = so.map(e => [e.k, e.mean + side * e.wide]).filter(point => Number.isFinite(point[1]))
    all.push({ ...more, name: side > 0 ? "at every look" : "", dashed: true, points })
  }
  const drawn = all.filter(line => line.points.length)
  return lines(drawn, { xLabel: "replicates", whole: true, joined: false, height: 380, ...axes })
}
function replicates() {
  const sets = dataNames()
  const controls = []
  if (!sets.length) return nothing()
  const data = choose("data", sets, sets[0])
  const [method, setting, own] = methodAndSetting(data, controls)
  const others = sorted(runsWhere(data, run => settingOf(run) == setting).map(run => methodOf(run).name)).filter(name => name != method)
  const other = others.includes(asked.method[1]) ? asked.method[1] : ""
  if (asked.method[1] && !other) notices.push(`“${asked.method[1]}” has no runs with this setting.`)
  const change = name => ({ method: name ? [method, name] : [method] })
  controls.push(select("other", "Minus another method", [["", "none"], ...plain(others)], other, change))
  const [metric, rule] = metricAndRule(data, own, controls)
  const v = values(metric.name, rule)
  const ofOther = runsWhere(data, run => other && methodOf(run).name == other && settingOf(run) == setting)
  const second = new Map(ofOther.map(run => [meta.columns.replicate[run], v[run]]))
  const less = run => (other ? (second.get(meta.columns.replicate[run]) ?? NaN) : 0)
  const rows = own.map(run => ({ name: replicateOf(run), value: v[run] - less(run) })).filter(row => Number.isFinite(row.value))
  const none = other ? `${method} and ${other} share no replicate: train both with the same seeds or replicates.` : "Choose another measure or checkpoint."
  if (!rows.length) return empty("No replicate has this", none, controls)
  const so = soFar(rows.map(row => row.value))
  const last = so.at(-1)
  const what = other ? `${method} minus ${other}` : method
  const text = (other ? signed : same => same)(plus(last, metric, 1))
  const chance = last.low < 0 && last.high > 0 ? ", which may be chance" : ""
  let title = `${what}: ${text} after ${many(rows.length, "replicate")}`
  if (rows.length < 2) title = `${what}: one replicate, so no interval yet`
  else if (other) title = `${what}: ${text}${metric.percent ? " points" : ""}${chance}`
  const looks = Number.isFinite(last.wide)
    ? "Dashed: the interval that holds even if one looks after each replicate and stops when pleased."
    : "An interval that holds at every look needs four or five replicates."
  const curvesOf = row => link(address("curves", { data, method: [method], setting, replicate: row.name }), "its curves")
  const line = (row, k) => [row.name, ...[row.value, so[k].mean, so[k].low, so[k].high].map(v => write(v, metric, 1)), curvesOf(row)]
  return {
    title,
    controls,
    lead:
      "Each mark is a replicate, in order. The line is the mean of those so far, the band its 95 % interval for a number of replicates " +
      `that was fixed before. ${looks}` +
      `${rows.length == 1 ? " Train more seeds to see how much this value varies." : ""}`,
    figure: [
      sequence(rows, so, {
        mark: markOf(method),
        what,
        looked: true,
        yLabel: (other ? "difference, " : "") + (metric.percent && other ? "points" : unit(metric)),
        label: `${metric.title} by replicate, ${what}, ${titleOf(data)}`,
        percent: metric.percent,
        zero: !!other,
      }),
    ],
    more: [numbers(["Replicate", "Value", "Mean so far", "From", "To", " Curves"], rows.map(line))],
  }
}

const symbol = code => meta.verdicts[code]?.[0] ?? code
const verdictOf = code => meta.verdicts[code]?.[1] ?? code
const verdict = code => h("span", { class: "verdict", role: "img", title: verdictOf(code), "aria-label": verdictOf(code) }, symbol(code))
const setTitle = one => (one.version > 1 ? `Set ${one.version}: ${one.title}` : `First set, ${one.title}`)
const AMONG = { mean: "mean over losses", every: "the smallest of all losses", all: "all together" }
const effectName = e => e.of.split(", ").map(part => AMONG[part] ?? (partOf(part) ? short(part) : part)).join(", ")
function counts(effects) {
  const codes = Object.keys(meta.verdicts).map(code => [code, effects.filter(e => e.verdict == code).length])
  return codes.filter(([, n]) => n)
}
function claimMenu(id) {
  const group = one => ({ group: setTitle(one), options: [...new Map(one.effects.map(e => [e.id, `${e.id}: ${e.statement}`]))] })
  return select("claim", "Claim", [["", "all claims"], ...meta.sets.map(group)], id, claim => ({ claim, of: "" }))
}
function allClaims(menu) {
  const line = (id, effects) => {
    const marks = counts(effects).map(([code, n]) => h("span", {}, verdict(code), effects.length > 1 ? ` ${n}` : ""))
    return h("li", {}, link(address("claims", { claim: id }), h("b", {}, id), h("span", {}, effects[0].statement), h("span", { class: "marks" }, marks)))
  }
  const list = one => [...Map.groupBy(one.effects, e => e.id)].map(([id, effects]) => line(id, effects))
  const registered = meta.sets.filter(one => one.version > 1).flatMap(one => one.effects)
  const effects = registered.length ? registered : meta.sets[0].effects
  const n = code => effects.filter(e => e.verdict == code).length
  return {
    title: registered.length
      ? `Of ${effects.length} registered effects ${n("above delta")} are larger than δ, ${n("reversed")} are decreases`
      : `${n("reproduced")} of ${effects.length} effects are reproduced, ${n("contradicted")} have the opposite sign`,
    controls: [menu],
    lead:
      "Each claim of the sets from 2 on was committed before the runs that decide it. δ is the smallest effect of " +
      "interest, mostly 0.5 points of recall@1. A claim has several effects: one for each loss or data set, or their mean. " +
      "Effects of tuned methods are given one search, whose noise is in no interval (see errata.md), but in sets 14 and 20, which search anew. " +
      "Numbers count effects by verdict. Open a claim for its effects, what each replicate says, and the runs behind them.",
    figure: [
      h("ul", { class: "key" }, counts(effects).map(([code, n]) => h("li", {}, verdict(code), ` ${verdictOf(code)} (${n})`))),
      meta.sets.map(one => [h("h2", {}, setTitle(one)), h("ul", { class: "claims" }, list(one))]),
    ],
    more: [],
  }
}
const points = v => signed(Math.abs(v) < 0.005 && v ? v.toPrecision(1) : v.toFixed(2))
const effectText = e =>
  e.look ? points(e.effect) + (e.low === null ? "" : ` [${points(e.low)}, ${points(e.high)}]`) : "no replicates yet"
function runsBehind(e, at) {
  // a row of a pair is a method, or METHOD | SETTING
  const found = e.found.slice(0, e.look || undefined)
  const each = j => (found.length && Array.isArray(found[0]) ? points(mean(found.map(row => row[j]))) : found.length ? points(mean(found)) : "")
  const line = (sides, j) => {
    const [[a, own], [b, others]] = sides.map(row => row.split(" | "))
    const together = own == others && a != b
    const way = (methods, setting, words) => link(at("replicates", methods, setting), words)
    const ways = together
      ? (own ? [own] : e.settings).map(setting => way([a, b], setting, setting ? inWords(setting) : "its replicates"))
      : [[a, own], [b, others]].map(([method, setting], k) => way([method], setting ?? e.settings[0], sides[k]))
    const byClass = together && !own && partOf(e.part).classes[a] && partOf(e.part).classes[b]
    const classes = byClass ? link(address("pair", { data: e.part, method: [a, b] }), "by class") : ""
    return [sides.join(" minus "), each(j), ways.map((one, k) => [k ? ", " : "", one]), classes]
  }
  return numbers([" Pair", "Effect", " Runs", " Classes"], e.pairs.map(line), `The runs behind it (${many(e.pairs.length, "pair")})`)
}
function askedOf(e, metric) {
  const lost = "Recall@1 lost from the best evaluation to the last"
  const of = e.metric == "lost" ? lost : e.with ? `${metric.title} with ${metricOf(e.with).title}, over objectives` : metric.title
  const rates = { own: ", each method at its own learning rate", equal: ", mean over equal learning rates" }[e.rates] ?? ""
  return of + (e.rule && e.metric != "lost" ? `, ${ruleOf(e.rule)}` : "") + rates + (e.less != null ? ", minus the same in another setting" : "")
}
function claims() {
  if (!meta.sets.length)
    return empty(
      "No claim has been tested yet",
      `The verdicts are written with the tables of the profile: dmlstudy tables --profile ${meta.profile}, then make the page again.`,
    )
  const ids = meta.sets.flatMap(one => one.effects.map(e => e.id))
  const id = asked.claim ? choose("claim", ids) : ""
  const menu = claimMenu(id)
  if (!id) return allClaims(menu)
  const own = meta.sets.find(one => one.effects.some(e => e.id == id))
  const effects = own.effects.filter(e => e.id == id)
  const names = effects.map(e => e.of)
  const e = effects[names.indexOf(choose("of", names, names[0]))]
  const u = e.unit && ` ${e.unit}`
  const metric = metricOf(e.metric == "lost" ? "recall@1" : e.metric)
  const rule = e.metric == "lost" ? "last" : e.rule
  const at = (view, method, setting) => address(view, { data: e.part, method, metric: metric.name, rule, setting })
  const least = e.over == "every" && e.pairs.map((_, j) => mean(e.found.slice(0, e.look || undefined).map(row => row[j])))
  const worst = least && least.indexOf(Math.min(...least))
  const series = e.found.map(v => (e.over == "every" ? v[worst] : Array.isArray(v) ? mean(v) : v))
  const noun = e.counted ? e.counted.replace(/(ch)es$|s$/, "$1").replace("draw", "replicate") : "replicate"
  const [so, rows] = [soFar(series), series.map((value, k) => ({ name: `${noun} ${e.first + k}`, value }))]
  const drawn = effects
    .filter(one => one.look && one.effect !== null)
    .sort((a, b) => (effects.length > 10 ? b.effect - a.effect : 0))
    .map(one => ({
      ...{ label: `${symbol(one.verdict)} ${effectName(one)}`, mean: one.effect, low: one.low ?? NaN, high: one.high ?? NaN },
      ...{ mark: 0, tone: "ink-mark", shade: one == e, text: effectText(one), href: address("claims", { claim: id, of: one.of }) },
      told: `${effectName(one)}: ${verdictOf(one.verdict)}, ${effectText(one)}`,
    }))
  const n = many(e.look, noun)
  const some = e.look ? `Here: ${effectText(e)}${u}, ${n}${own.cap ? ` of at most ${own.cap}` : ""}.` : "It has no replicates yet."
  const figure = []
  if (drawn.length) {
    const [zero, delta] = [e.null ?? 0, e.delta]
    figure.push(dots(drawn, { metric: { percent: false }, zero, sign: true, band: [zero - delta, zero + delta], label: `effect with its 95 % interval${u && ","}${u}` }))
    figure.push(soft("Shaded: effects too small to matter. Bold: the effect of what is below."))
  }
  if (series.length)
    figure.push(
      h("h2", {}, `Each ${noun}: ${effectName(e)}`),
      sequence(rows, so, {
        ...{ mark: markOf(e.pairs[0]?.[0].split(" | ")[0]), what: e.statement, yLabel: e.unit || metric.title, percent: false, zero: true },
        ...{ label: `${e.statement}: what each ${noun} says`, verticals: e.look ? [[e.look, `the verdict is of ${n}`]] : [], xLabel: many(2, noun).slice(2) },
      }),
      soft(
        "The line is the mean so far, the band its 95 % interval. The verdict may have a wider one: ",
        noun == "search" ? "neighbouring searches share replicates." : "results were checked more than once.",
      ),
    )
  const line = (row, k) => [row.name, points(row.value), ...[so[k].mean, so[k].low, so[k].high].map(v => (isNaN(v) ? "" : points(v)))]
  const behind = e.pairs.length && partOf(e.part) ? runsBehind(e, at) : soft("The runs behind it are not on this page.")
  return {
    title: `“${e.statement}”: ${e.look || e.counted ? verdictOf(e.verdict) : "not tested yet"} (${effectName(e)})`,
    controls: [menu, names.length > 1 && select("of", "Effect", effects.map(one => [one.of, effectName(one)]), e.of)],
    lead:
      `${setTitle(own)}. ${[e.paper, e.source?.replace(/\?$/, "")].filter(Boolean).join(": ")}. ${askedOf(e, metric)}; ` +
      `smallest effect of interest ${+e.delta.toPrecision(3)}${u}. ${some}` +
      `${e.new_low != null ? ` For new test classes, too: [${points(e.new_low)}, ${points(e.new_high)}].` : ""}` +
      `${e.printed != null ? ` Reported: ${points(e.printed)}${e.beside ? ` (${e.beside})` : ""}.` : ""}`,
    figure,
    more: [
      behind,
      e.with && partOf(e.part) && p(link(at("methods", []), "The objectives it is over")),
      rows.length > 0 && numbers([noun[0].toUpperCase() + noun.slice(1), "Effect", "Mean so far", "From", "To"], rows.map(line), `Each ${noun} as a table`),
      p(link("#claims", "All claims")),
    ],
  }
}

// ------------------------------------------------------------------ the page
const DRAW = { methods, trials, pair, curves, replicates, claims }
let drawnAt = 0
function tabs() {
  const keep = { rule: asked.rule, metric: asked.metric, data: asked.data == "all" ? null : asked.data }
  const few = asked.view != "trials" && asked.method.length < 3 ? asked.method : []
  return Object.entries(VIEWS).map(([name, [words]]) => {
    const method = ["pair", "replicates", "curves"].includes(name) ? few : []
    const claim = name == "claims" ? { claim: asked.claim, of: asked.of } : {}
    const href = address(name, { ...keep, ...claim, method })
    return h("a", { id: `tab-${name}`, href, "aria-current": name == asked.view && "page" }, words)
  })
}
function draw(moved) {
  notices = []
  read()
  const focused = document.activeElement?.id
  const view = DRAW[asked.view]()
  $("tabs").replaceChildren(...tabs())
  $("about").textContent = VIEWS[asked.view][1]
  $("controls").replaceChildren(...view.controls.filter(Boolean))
  $("title").textContent = view.title
  $("lead").textContent = view.lead
  $("notice").textContent = notices.join(" ")
  for (const part of ["figure", "more"]) $(part).replaceChildren(...view[part].flat(9).filter(Boolean))
  const way = asked.view == "pair" ? "" : ", or reach it with the tab key,"
  say(view.figure.length && asked.view != "claims" ? `Point at a mark${way} to read its numbers here.` : "", true)
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
})
addEventListener("hashchange", () => draw(true))
addEventListener("resize", () => $("figure").clientWidth != drawnAt && meta && draw(false))
unpack()
  .then(() => {
    const trials = many(sum(meta.trials.map(one => one.scores.length)), "trial")
    $("foot").textContent =
      `${meta.about} ${many(meta.runs, "run")} and ${trials}. ${meta.note} ` +
      "The address of the page holds what is shown: copy it to share a view. Nothing is loaded from elsewhere."
    draw(false)
    document.documentElement.dataset.ready = Math.round(performance.now())
  })
  .catch(error => {
    $("title").textContent = "The page could not be opened"
    $("lead").textContent = `A browser from 2024 or later is needed. Its message: ${error.message}`
    throw error
  })
