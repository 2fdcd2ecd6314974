// Follows every link of a built site: node check.mjs DIR. Each leads to a file of the
// site, with its anchor, and no page loads anything from another host.
import { readFileSync, readdirSync, statSync } from 'node:fs'
import path from 'node:path'

const base = process.env.HOLDFAST_BASE ?? '/'
const unescaped = (text) =>
  text.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(code)).replaceAll('&quot;', '"').replaceAll('&amp;', '&')

// attributes gives the values of an attribute of all tags of these names.
function attributes(html, tags, name) {
  const tag = new RegExp(`<(?:${tags})\\b[^>]*?\\s${name}="([^"]*)"`, 'g')
  return [...html.matchAll(tag)].map((match) => unescaped(match[1]))
}

// check returns what is wrong in the site in dir, a line for each, and how many links it has.
export function check(dir) {
  const pages = new Map()
  for (const file of readdirSync(dir, { recursive: true })) {
    if (!file.endsWith('.html')) continue
    const html = readFileSync(path.join(dir, file), 'utf8')
    pages.set(file, { html, anchors: new Set(attributes(html, '[a-z][a-z0-9-]*', 'id')) })
  }
  const wrong = []
  let links = 0
  for (const [page, { html }] of pages) {
    for (const url of [...attributes(html, 'script|img|source|iframe', 'src'), ...attributes(html, 'link', 'href')]) {
      if (/^(https?:)?\/\//.test(url)) wrong.push(`${page} loads ${url} from another host`)
    }
    const used = [...attributes(html, 'a|link', 'href'), ...attributes(html, 'script|img|source', 'src')]
    for (const href of used.filter((url) => !/^([a-z]+:|\/\/)/i.test(url))) {
      links++
      const [to, anchor] = decodeURI(href).split('#')
      let file = to === '' ? page : to.startsWith('/') ? path.relative(base, to) : path.join(path.dirname(page), to)
      if (to === base) file = 'index.html'
      else if (to.endsWith('/')) file = path.join(file, 'index.html')
      if (!statSync(path.join(dir, file), { throwIfNoEntry: false })?.isFile()) {
        wrong.push(`${page} links to ${href}, and the site has no ${file}`)
      } else if (anchor && !pages.get(file)?.anchors.has(anchor)) {
        wrong.push(`${page} links to ${href}, and ${file} has no heading of that name`)
      }
    }
  }
  return { pages: pages.size, links, wrong }
}

if (process.argv[1].endsWith('check.mjs')) {
  const { pages, links, wrong } = check(process.argv[2])
  console.log(wrong.length ? wrong.join('\n') : `${links} links of ${pages} pages lead to a page or a file`)
  if (wrong.length) process.exit(1)
}
