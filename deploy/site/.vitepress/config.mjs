// The site is made of the Markdown of the repository as it stands there: links between
// pages, to headings, pictures and other files are followed as the repository's own
// viewer follows them.
import { cpSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { draw } from '../diagram.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
// The tests build other pages, by this configuration.
const pages = path.resolve(process.env.HOLDFAST_PAGES ?? path.join(here, '../../..'))
const base = process.env.HOLDFAST_BASE ?? '/' // the path at which the site is served

// Every page is in the sidebar, or the build fails.
const sidebar = [
  {
    text: 'Start',
    items: [
      { text: 'Holdfast in one minute', link: '/' },
      { text: 'Quick start', link: '/docs/quick-start' },
      { text: 'Why, in two minutes', link: '/docs/why' },
      { text: 'What is supported', link: '/docs/features' },
      { text: 'Beside other stores and brokers', link: '/docs/alternatives' },
      { text: 'Beside Temporal, Kafka and others', link: '/docs/comparison' },
    ],
  },
  {
    text: 'Run it',
    items: [
      { text: 'Installing and upgrading', link: '/docs/installing' },
      { text: 'The command line', link: '/docs/command-line' },
      { text: 'Configuration', link: '/docs/configuration' },
      { text: 'Operating', link: '/docs/operating' },
      { text: 'The console', link: '/docs/console' },
      { text: 'Health and metrics', link: '/docs/metrics' },
      { text: 'The HTTP API', link: '/docs/http-api' },
      { text: 'Events of clients', link: '/docs/events' },
      { text: 'Moving from other servers', link: '/docs/moving' },
    ],
  },
  {
    text: 'Secure it',
    items: [
      { text: 'Security', link: '/docs/security' },
      { text: 'Policies', link: '/docs/policy' },
      { text: 'Reporting a vulnerability', link: '/SECURITY' },
    ],
  },
  {
    text: 'More than one machine',
    items: [
      { text: 'The cluster', link: '/docs/cluster' },
      { text: 'Other brokers', link: '/docs/bridges' },
    ],
  },
  {
    text: 'Write programs',
    items: [
      { text: 'From Go', link: '/docs/go' },
      { text: 'With the Azure SDKs', link: '/docs/azure-sdks' },
      { text: 'Locks', link: '/docs/locks' },
      { text: 'Transactions and timers', link: '/docs/transactions' },
      { text: 'Each message once', link: '/docs/consistent-messaging' },
      { text: 'The protocol', link: '/docs/protocol' },
      { text: 'Example: a shooting range', link: '/examples/shootingrange/' },
      { text: 'Example: a shop', link: '/examples/orders/' },
    ],
  },
  {
    text: 'Know it',
    items: [
      { text: 'What it keeps, and the proof', link: '/docs/reliability' },
      { text: 'How fast, and why', link: '/docs/performance' },
      { text: 'Measured beside other servers', link: '/docs/performance/compare' },
      { text: 'Where the time goes', link: '/docs/performance/profile' },
      { text: 'Architecture', link: '/docs/architecture' },
      { text: 'Contributing', link: '/CONTRIBUTING' },
      { text: 'Changelog', link: '/CHANGELOG' },
    ],
  },
]

// route is the path in the site of a page of the repository: a README is its folder's.
const route = (page) => page.replace(/(^|\/)README\.md$/, '$1index.md')

// anchor names a heading as the repository's viewers do, and as its tests of links.
const anchor = (heading) =>
  heading.trim().toLowerCase().replace(/[^\p{L}\p{N}\- _]/gu, '').replaceAll(' ', '-')

const files = new Set() // of the repository to which pages link and which are not pages

// followLinks makes links from page to page out of links from file to file.
function followLinks({ env, tokens }) {
  const page = path.relative(pages, env.realPath ?? env.path)
  const links = tokens.flatMap((block) => block.children ?? []).filter((token) => token.type === 'link_open')
  for (const link of links) {
    const href = link.attrGet('href')
    const [to, heading] = href.split('#')
    if (to === '' || /^[a-z]+:/i.test(href)) continue
    const target = path.posix.join(path.posix.dirname(page), to)
    if (!statSync(path.join(pages, target), { throwIfNoEntry: false })?.isFile()) {
      throw new Error(`${page} links to ${href}, and there is no such file`)
    }
    if (target.endsWith('.md')) {
      link.attrSet('href', `/${route(target)}${heading ? '#' + heading : ''}`)
    } else {
      files.add(target)
      link.attrSet('href', `${base}files/${target}.html`)
      link.attrSet('target', '_self') // it is not a page of the theme
    }
  }
}

// showAsText takes the name from blocks whose languages only the tests of the repository know.
function showAsText({ tokens }) {
  for (const token of tokens) {
    if (token.type === 'fence' && /^(exchange|bytes)\b/.test(token.info)) token.info = 'txt'
  }
}

// drawDiagrams puts drawings in the place of blocks of Mermaid.
function drawDiagrams(md) {
  const others = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, at, options, env, self) => {
    const { info, content, map } = tokens[at]
    if (info.trim() !== 'mermaid') return others(tokens, at, options, env, self)
    const where = `${path.relative(pages, env.realPath ?? env.path)}:${map[0] + 1}`
    return `<div class="diagram" role="img" aria-label="${escaped(content.trim().split('\n').slice(1).map((line) => line.trim()).join('; '))}" v-pre>${draw(content, where)}</div>\n`
  }
}

const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`)

// writeFiles writes the files to which pages link into the site, each as a page.
function writeFiles(out) {
  for (const file of files) {
    const to = path.join(out, 'files', file + '.html')
    mkdirSync(path.dirname(to), { recursive: true })
    writeFileSync(to, `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(file)} | Holdfast</title><link rel="icon" href="${base}icon.svg">
<style>:root { color-scheme: light dark } body { margin: 1.5rem; font: 14px/1.5 system-ui, sans-serif } pre { overflow-x: auto; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }</style>
</head><body><p><a href="${base}">Holdfast</a> / ${escaped(file)}</p>
<pre>${escaped(readFileSync(path.join(pages, file), 'utf8'))}</pre></body></html>
`)
  }
}

// vueForPages finds Vue for pages, which are outside of the folder in which it is installed.
const vueForPages = {
  name: 'vue-for-pages',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (!/^vue(\/|$)/.test(id) || importer?.startsWith(here)) return null
    return this.resolve(id, path.join(here, 'config.mjs'), { ...options, skipSelf: true })
  },
}

// expectAllPagesInSidebar fails if a page cannot be found, or the sidebar has one that is not there.
function expectAllPagesInSidebar(found) {
  if (process.env.HOLDFAST_PAGES) return
  const listed = sidebar.flatMap((group) => group.items).map(({ link }) => link.slice(1).replace(/(^|\/)$/, '$1index') + '.md')
  const missing = found.map(route).filter((page) => !listed.includes(page))
  const gone = listed.filter((page) => !found.map(route).includes(page))
  if (missing.length || gone.length) {
    throw new Error(`the sidebar in deploy/site/.vitepress/config.mjs lacks ${missing}; it has ${gone}, which are not there`)
  }
}

export default defineConfig({
  title: 'Holdfast',
  description: 'An MQTT 5 broker with a durable key-value store that its clients reach over the same connection',
  lang: 'en',
  base,
  srcDir: pages,
  srcExclude: ['!(README|CONTRIBUTING|SECURITY|CHANGELOG).md', '!(docs|examples)/**/*.md'],
  outDir: process.env.HOLDFAST_SITE ?? path.join(here, '../dist'),
  cacheDir: path.join(here, 'cache'),
  rewrites: route,
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: `${base}icon.svg` }]],
  markdown: {
    anchor: { slugify: anchor },
    toc: { slugify: anchor },
    config(md) {
      md.core.ruler.push('follow_links', followLinks)
      md.core.ruler.push('plain_blocks', showAsText)
      drawDiagrams(md)
    },
  },
  themeConfig: {
    logo: '/icon.svg',
    sidebar: process.env.HOLDFAST_PAGES ? [] : sidebar,
    outline: [2, 3],
    search: { provider: 'local' },
    docFooter: { prev: 'Previous', next: 'Next' },
    externalLinkIcon: true,
  },
  vite: { plugins: [vueForPages] },
  buildEnd(site) {
    expectAllPagesInSidebar(site.pages.map((page) => site.rewrites.inv[page] ?? page))
    writeFiles(site.outDir)
    cpSync(path.join(here, '../../../internal/console/web/icon.svg'), path.join(site.outDir, 'icon.svg'))
  },
})
