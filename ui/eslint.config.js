import js from '@eslint/js'
import svelte from 'eslint-plugin-svelte'
import globals from 'globals'
import ts from 'typescript-eslint'

export default ts.config(
  { ignores: ['node_modules', 'src/lib/api/schema.d.ts'] },
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser, ...globals.node } } },
  { files: ['**/*.svelte', '**/*.svelte.ts'], languageOptions: { parserOptions: { parser: ts.parser } } },
  {
    rules: {
      'no-undef': 'off', // the types tell
      eqeqeq: ['error', 'always', { null: 'ignore' }],
      'no-console': 'error',
      // Addresses are made by href(), which knows the prefix of the mount.
      'svelte/no-navigation-without-resolve': 'off',
      // Maps and sets are replaced, not changed: $state.raw holds them.
      'svelte/prefer-svelte-reactivity': 'off',
    },
  },
)
