// Parses the blocks of code in the pages whose languages no compiler here knows: the SDKs'
// Rust and C#, and shell commands that are not typed into a shell by another test.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import treeSitter from '@vscode/tree-sitter-wasm'

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '../..')
const grammars = path.dirname(fileURLToPath(import.meta.resolve('@vscode/tree-sitter-wasm')))
const languages = { rust: 'rust', csharp: 'c-sharp', sh: 'bash' }

await treeSitter.Parser.init()
const parsers = {}
for (const [language, grammar] of Object.entries(languages)) {
  parsers[language] = new treeSitter.Parser()
  parsers[language].setLanguage(await treeSitter.Language.load(path.join(grammars, `tree-sitter-${grammar}.wasm`)))
}

// mistake gives the line, from 1 on, in which a block cannot be parsed; null: it can.
function mistake(language, code) {
  const { rootNode } = parsers[language].parse(code)
  if (!rootNode.hasError) return null
  const [first] = rootNode.descendantsOfType(['ERROR']).concat(rootNode)
  return first.startPosition.row + 1
}

// blocks gives the fenced blocks of a page in these languages.
const blocks = (text) =>
  [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)]
    .filter(([, language]) => language in languages)
    .map((match) => ({ language: match[1], code: match[2], line: text.slice(0, match.index).split('\n').length }))

test('the blocks of code in the pages can be parsed', () => {
  const found = Object.fromEntries(Object.keys(languages).map((language) => [language, 0]))
  for (const page of execFileSync('git', ['ls-files', '*.md'], { cwd: root, encoding: 'utf8' }).trim().split('\n')) {
    for (const { language, code, line } of blocks(readFileSync(path.join(root, page), 'utf8'))) {
      found[language]++
      const wrong = mistake(language, code)
      assert.equal(wrong, null, `${page}:${line + wrong}: this is not ${language}`)
    }
  }
  for (const [language, number] of Object.entries(found)) assert.ok(number > 0, `no page has a block of ${language}`)
})

for (const [language, code] of [
  ['rust', 'let settings = Builder::default()\n    .hostname("localhost"\n    .build()?;\n'],
  ['csharp', 'var settings = new Settings("localhost")\n{\n    UseTls = false\n    CleanStart = false,\n};\n'],
  ['sh', 'docker run -e "A=b holdfast\n'],
]) {
  test(`a mistake in ${language} is found`, () => {
    assert.notEqual(mistake(language, code), null)
  })
}
