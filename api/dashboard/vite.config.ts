import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Same sources, same bytes: no source maps, no dates, nothing of this machine. CI builds again and compares.
export default defineConfig({
  base: "/console/",
  plugins: [react()],
  build: {
    target: "es2022",
    sourcemap: false,
    // Everything is a file: the content security policy allows fonts and workers from here only, and not as data.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900,
    license: { fileName: "licenses.md" },
  },
  server: { proxy: { "^/(?!console/)": "http://127.0.0.1:8400" } },
});
