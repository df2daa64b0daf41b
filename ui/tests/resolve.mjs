// Lets Node read the sources as the bundler does: names of modules without their ending.
import { registerHooks } from 'node:module'

registerHooks({
  resolve: (specifier, context, next) => next(/^\.{1,2}\/[^.]*$/.test(specifier) ? `${specifier}.ts` : specifier, context),
})
