import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// Where the built files go: into the Python package, so that the wheel carries them.
const outDir = process.env.WINDLASS_UI_OUT ?? '../src/windlass/dashboard/static'

export default defineConfig({
  plugins: [svelte()],
  // Relative addresses: the server sets <base href> to the prefix that the dashboard is mounted under.
  base: './',
  build: {
    outDir,
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0, // a strict content policy knows no data: addresses
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
  },
  server: {
    // `npm run dev` beside `windlass dashboard`.
    proxy: { '/api': process.env.WINDLASS_DASHBOARD ?? 'http://127.0.0.1:8080' },
  },
})
