// Draws the diagrams of the pages, blocks of Mermaid as the repository's own viewer shows them,
// as SVG when the site is built: no script runs in the reader's browser. Of Mermaid it knows what
// the pages use: "graph TD", and lines "a & b --> c --> d".
import { instance } from '@viz-js/viz'

const viz = await instance()
const name = /^[\w.-]+$/

// draw gives the SVG of a block; where says which page and line an error is about.
export function draw(code, where) {
  const [first, ...lines] = code.trim().split('\n').map((line) => line.trim())
  if (first !== 'graph TD') throw new Error(`${where}: the diagram begins with "${first}", and the site draws "graph TD" only`)
  const edges = []
  for (const line of lines.filter((line) => line !== '')) {
    const sets = line.split('-->').map((set) => set.split('&').map((node) => node.trim()))
    if (sets.length < 2 || !sets.flat().every((node) => name.test(node))) {
      throw new Error(`${where}: the site draws lines "a & b --> c" only, and not "${line}"`)
    }
    for (let i = 1; i < sets.length; i++) for (const tail of sets[i - 1]) for (const head of sets[i]) edges.push({ tail, head })
  }
  const svg = viz.renderString(
    {
      edges,
      graphAttributes: { bgcolor: 'transparent', ranksep: 0.4, nodesep: 0.15 },
      nodeAttributes: { shape: 'box', style: 'rounded', fontname: 'system-ui, sans-serif', fontsize: 13, height: 0.32, margin: '0.14,0.04' },
      edgeAttributes: { arrowsize: 0.6 },
    },
    { format: 'svg' },
  )
  return svg
    .slice(svg.indexOf('<svg'))
    .replace(/<!--.*?-->\n?|<title>.*?<\/title>\n?/gs, '')
    .replaceAll('="black"', '="currentColor"') // as the text around it, light or dark
    .replaceAll('<text ', '<text fill="currentColor" ')
}
