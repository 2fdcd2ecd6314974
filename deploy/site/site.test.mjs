// Builds sites of a few pages by the configuration of the real one, and breaks them.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { check } from './check.mjs'
import { draw } from './diagram.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))

// build makes a site of these pages, and gives its folder and what the check of its links says.
function build(t, pages) {
  const dir = mkdtempSync(path.join(tmpdir(), 'holdfast-site-'))
  t.after(() => rmSync(dir, { recursive: true }))
  for (const [page, text] of Object.entries(pages)) {
    mkdirSync(path.dirname(path.join(dir, 'pages', page)), { recursive: true })
    writeFileSync(path.join(dir, 'pages', page), text)
  }
  const site = path.join(dir, 'site')
  execFileSync(process.execPath, [path.join(here, 'node_modules/vitepress/bin/vitepress.js'), 'build', here], {
    env: { ...process.env, HOLDFAST_PAGES: path.join(dir, 'pages'), HOLDFAST_SITE: site },
    encoding: 'utf8',
    stdio: 'pipe',
  })
  return { site, ...check(site) }
}

test('links to pages, headings and files are followed, and those that lead nowhere are found', (t) => {
  const { site, wrong, links } = build(t, {
    'README.md': `# Start

[a page](docs/keys.md#keys-values--versions), [code](client/doc.go)
[a page](docs/keys.md#gone), [here](#nowhere)

<img src="https://example.com/count.png" alt="">
`,
    'docs/keys.md': '# Keys\n\n[start](../README.md#start), [below](#keys-values--versions)\n\n## Keys, values & versions\n\n```mermaid\ngraph TD\n  keys --> values & versions\n```\n',
    'client/doc.go': 'package client // a <b> & c\n',
  })
  assert.deepEqual(wrong, [
    'index.html loads https://example.com/count.png from another host',
    'index.html links to /docs/keys.html#gone, and docs/keys.html has no heading of that name',
    'index.html links to #nowhere, and index.html has no heading of that name',
  ])
  assert.ok(links > 10, `${links} links`)
  const page = readFileSync(path.join(site, 'docs/keys.html'), 'utf8')
  for (const node of ['keys', 'values', 'versions']) assert.match(page, new RegExp(`<text [^>]*>${node}</text>`))
  assert.ok(!page.includes('graph TD'), 'a diagram is shown as code')
})

for (const [what, link, message] of [
  ['page', '[a page](docs/gone.md)', /README\.md links to docs\/gone\.md, and there is no such file/],
  ['picture', '![a picture](docs/gone.png)', /docs\/gone\.png/],
]) {
  test(`a ${what} that is not there ends the build`, (t) => {
    assert.throws(() => build(t, { 'README.md': `# Start\n\n${link}\n` }), (error) => message.test(error.stderr + error.stdout))
  })
}

test('a diagram has its nodes and arrows, and is as the text around it, light or dark', () => {
  const svg = draw('graph TD\n  a & b --> c --> d.e\n', 'page.md:1')
  for (const node of ['a', 'b', 'c', 'd.e']) assert.ok(svg.includes(`>${node}</text>`), node)
  assert.equal(svg.match(/class="edge"/g).length, 3)
  assert.doesNotMatch(svg, /black|<script|<!--/)
})

for (const code of ['sequenceDiagram\n  a ->> b: x', 'graph TD\n  a -- text --> b', 'graph TD\n  a[A name] --> b', 'graph TD\n  alone']) {
  test(`a diagram that the site cannot draw ends the build: ${JSON.stringify(code)}`, () => {
    assert.throws(() => draw(code, 'page.md:1'), /^Error: page\.md:1: /)
  })
}
