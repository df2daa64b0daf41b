// Runs every test of the pages' logic; node ui/tests/run.mjs
import { readdirSync } from 'node:fs'
import { run } from 'node:test'
import { dot, spec } from 'node:test/reporters'
import './resolve.mjs'

const folder = import.meta.dirname
const files = readdirSync(folder)
  .filter((name) => name.endsWith('.test.ts'))
  .map((name) => `${folder}/${name}`)
const loud = process.argv.includes('--spec')
run({ files, execArgv: ['--import', `${folder}/resolve.mjs`] })
  .on('test:fail', () => (process.exitCode = 1))
  .compose(loud ? new spec() : dot)
  .pipe(process.stdout)
