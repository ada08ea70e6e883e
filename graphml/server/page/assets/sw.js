// A browser may still run the service worker that another server's page has left at this address, and would
// show that page from its cache. This one takes its place, forgets what was cached, and goes.
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(leave()));

async function leave() {
  for (const name of await caches.keys()) await caches.delete(name);
  await registration.unregister();
  for (const page of await clients.matchAll({ type: "window" })) await page.navigate(page.url);
}
