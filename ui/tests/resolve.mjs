// Lets Node read the sources as the bundler does: names of modules without their ending. Packages are left alone.
import { registerHooks } from 'node:module'

const ours = (specifier, { parentURL = '' }) => /^\.{1,2}\/[^.]*$/.test(specifier) && !parentURL.includes('/node_modules/')

registerHooks({
  resolve: (specifier, context, next) => next(ours(specifier, context) ? `${specifier}.ts` : specifier, context),
})
